// Command ringfence is all of Ringfence in one binary: the server, the command line
// and, when it is started again under another name, the sandbox itself. It only
// constructs; what it constructs is in the packages that it names.
package main

import (
	"os"

	"ringfence.dev/ringfence/internal/cli"
	"ringfence.dev/ringfence/internal/driver/gvisor"
)

// version is set by the build.
var version = "unknown"

func main() {
	gvisor.MaybeRunsc() // does not return in a process that is to be a sandbox
	os.Exit(cli.New(cli.Options{Version: version, Local: []cli.Local{
		{Parent: "", Make: serveCommand},
		{Parent: "", Make: doctorCommand},
		{Parent: "key", Make: keyCreateCommand},
		{Parent: "template", Make: templateBuildCommand},
	}}).Main())
}
