// Command sockwatch tells when, on which connection and why TCP sent again,
// reset or aborted inside chosen network namespaces, and writes it down as
// evidence.
package main

import "os"

func main() {
	env := systemEnv()
	os.Exit(run(env))
}
