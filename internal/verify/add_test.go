package verify

import "testing"

func TestReportAdd(t *testing.T) {
	results := []Result{ResultHolds, ResultIncomplete, ResultContradicts}
	for i, a := range results {
		for k, b := range results {
			r := &Report{Result: a, Files: []*File{{File: "a"}}, Ends: Ends{1, 2, 3, 4}}
			r.Add(&Report{Result: b, Files: []*File{{File: "b"}}, Findings: []Finding{{Text: "x"}}, Ends: Ends{10, 20, 30, 40}})
			if want := results[max(i, k)]; r.Result != want {
				t.Errorf("%s and %s come to %s, want %s", a, b, r.Result, want)
			}
			if len(r.Files) != 2 || r.Files[1].File != "b" || len(r.Findings) != 1 || r.Ends != (Ends{11, 22, 33, 44}) {
				t.Errorf("joined: %+v", r)
			}
		}
	}
}
