// Package plans holds the experiment plans that are shipped.
package plans

import "embed"

// FS has a file NAME.yaml for each plan.
//
//go:embed *.yaml
var FS embed.FS
