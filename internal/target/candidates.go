package target

import (
	"context"
	"maps"
	"slices"
)

// Candidates lists what could be named now, as [ParseSpec] reads it, for
// completion in a shell: host, the named namespaces, and the containers of the
// engine if it answers. A name that both have is given with its prefix.
func Candidates(ctx context.Context) []string {
	kinds := make(map[string]Kind)
	for _, n := range named() {
		kinds[n] = Netns
	}
	var r resolver
	defer r.close()
	both := make(map[string]bool)
	if r.ask(ctx) == nil {
		for _, n := range r.containers() {
			if _, ok := kinds[n]; ok {
				both[n] = true
			}
			kinds[n] = Docker
		}
	}
	out := []string{"host"}
	for _, n := range slices.Sorted(maps.Keys(kinds)) {
		specs := []Spec{{Bare, n}}
		switch {
		case both[n]:
			specs = []Spec{{Docker, n}, {Netns, n}}
		case n == "host":
			specs = []Spec{{kinds[n], n}} // alone it would mean something else
		}
		for _, s := range specs {
			if again, err := ParseSpec(s.String()); err == nil && again == s {
				out = append(out, s.String())
			} else if s.Kind == Bare {
				out = append(out, Spec{kinds[n], n}.String())
			}
		}
	}
	return out
}
