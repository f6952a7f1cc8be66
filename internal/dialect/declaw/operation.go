package declaw

import d "ringfence.dev/ringfence/internal/dialect"

// Introduction begins docs/compatibility/declaw.md.
const Introduction = `
# Declaw
Programs written for Declaw's SDKs run on Ringfence unchanged: the published packages ` + "`declaw`" + ` (PyPI) and ` + "`@declaw/sdk`" + ` (npm), with two
variables set. [Moving here](../move-from-declaw.md) says which. This page lists what such a program can do. Names are those of the
Python SDK; TypeScript writes them in camel case.

The tests do every row with ` + "`declaw`" + ` 1.5.0 and 1.7.0 and with ` + "`@declaw/sdk`" + ` 1.3.0, in a network in which nothing can be reached but the server.

**Protection that is not there is refused.** A create whose security policy enables PII redaction, injection defence, toxicity, code security,
invisible text, a content gate, a custom policy or transformations, or that has vault references or volumes, fails with a message that names
them. Three things are accepted that have no effect yet: ` + "`secure`" + ` (there is no interception proxy), ` + "`audit`" + ` (no audit log in Declaw's form: the native
events and the network log are there whatever it says) and ` + "`env_security`" + ` (nothing masks variables in an audit log that there is not).

**Under stress.** An SDK repeats a request after a status of 500 and above, and a command must not run twice: once a request to start something has
arrived, no answer is in that range. The headers of a command's answer are held back for 240 s, since the TypeScript client gives up after 300 s: until then a
timeout that passes is 408 (` + "`TimeoutError`" + `), after that the result has exit code 124, and spaces before it keep the connection alive. A sandbox that is killed
under a command is 404 (` + "`NotFoundError`" + `) while headers are held, after that the result has exit code 137 and the reason in stderr; later calls are 410
(` + "`SandboxError`" + `). The one exception is the death of the server's own process: the connection breaks, and the SDK sends the command again.
`

const (
	invalidError = "InvalidArgumentError"
	python       = "python"
	typescript   = "typescript"
	newPython    = "python-1.7.0" // 1.5.0 loses the port of DECLAW_DOMAIN when it dials the vault
)

// Operations is what programs do with Declaw's SDKs. The page in docs/compatibility is made
// of it, and the tests do each row with the published packages.
var Operations = []d.Operation{
	{Group: "Sandboxes", Name: "Sandbox.create", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "Sandbox.create(template)", Route: "POST /sandboxes", Support: d.Differs,
		How: "there are `base` and `code-interpreter`, on Debian, and what the operator builds; another name is `NotFoundError`"},
	{Group: "Sandboxes", Name: "Sandbox.create(timeout)", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "Sandbox.create(metadata, envs)", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "Sandbox.create(secure, security)", Route: "POST /sandboxes", Support: d.Differs,
		How: "`secure`, `audit` and `env_security` are accepted and have no effect yet; the answer does not repeat `security`"},
	{Group: "Sandboxes", Name: "Sandbox.create(lifecycle)", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "Sandbox.create, repeated", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "Sandbox.connect", Route: "GET /sandboxes/{id}", Support: d.Works},
	{Group: "Sandboxes", Name: "Sandbox.connect(timeout)", Route: "GET /sandboxes/{id}?timeout", Support: d.Works, Only: []string{python}},
	{Group: "Sandboxes", Name: "Sandbox.list", Route: "GET /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "Sandbox.list(state, metadata)", Route: "GET /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "SandboxPaginator", Route: "GET /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "sandbox.get_info", Route: "GET /sandboxes/{id}", Support: d.Works},
	{Group: "Sandboxes", Name: "sandbox.is_running", Route: "GET /sandboxes/{id}/status", Support: d.Works},
	{Group: "Sandboxes", Name: "sandbox.set_timeout", Route: "PATCH /sandboxes/{id}/timeout", Support: d.Differs, How: "counts from now, and takes effect at once"},
	{Group: "Sandboxes", Name: "sandbox.get_metrics", Route: "GET /sandboxes/{id}/metrics", Support: d.Works},
	{Group: "Sandboxes", Name: "sandbox.pause, resume", Route: "POST /sandboxes/{id}/pause", Support: d.Works},
	{Group: "Sandboxes", Name: "sandbox.kill", Route: "DELETE /sandboxes/{id}", Support: d.Differs, How: "with and without `wait` the sandbox is gone when the call returns"},
	{Group: "Sandboxes", Name: "Sandbox.kill_many", Route: "POST /sandboxes/kill-many", Support: d.Works},
	{Group: "Sandboxes", Name: "Sandbox.kill by id", Route: "DELETE /sandboxes/{id}", Support: d.Works},
	{Group: "Sandboxes", Name: "a killed sandbox", Route: "GET /sandboxes/{id}", Support: d.Works},
	{Group: "Sandboxes", Name: "an unknown sandbox", Route: "GET /sandboxes/{id}", Support: d.Works},
	{Group: "Sandboxes", Name: "a wrong API key", Route: "GET /sandboxes", Support: d.Works},
	{Group: "Sandboxes", Name: "AsyncSandbox", Route: "POST /sandboxes", Support: d.Works, Only: []string{python}},

	{Group: "Snapshots", Name: "sandbox.create_snapshot, snapshot", Route: "POST /sandboxes/{id}/snapshot", Support: d.Works},
	{Group: "Snapshots", Name: "sandbox.list_snapshots", Route: "GET /sandboxes/{id}/snapshots", Support: d.Differs, How: "there are no periodic ones"},
	{Group: "Snapshots", Name: "Sandbox.restore", Route: "POST /sandboxes/{id}/restore", Support: d.Differs,
		How: "of a sandbox that lives or is paused; one that was killed does not come back"},
	{Group: "Snapshots", Name: "sandbox.delete_snapshot", Route: "DELETE /sandboxes/{id}/snapshots/{snapshot_id}", Support: d.Works},
	{Group: "Snapshots", Name: "SnapshotPaginator", Route: "GET /snapshots", Support: d.Works},

	{Group: "Commands", Name: "commands.run", Route: "POST /sandboxes/{id}/commands", Support: d.Works},
	{Group: "Commands", Name: "commands.run(user, cwd, envs)", Route: "POST /sandboxes/{id}/commands", Support: d.Works},
	{Group: "Commands", Name: "commands.run(timeout)", Route: "POST /sandboxes/{id}/commands", Support: d.Works},
	{Group: "Commands", Name: "commands.run(on_stdout, on_stderr)", Route: "POST /sandboxes/{id}/commands", Support: d.Works},
	{Group: "Commands", Name: "commands.run_stream", Route: "POST /sandboxes/{id}/commands/stream", Support: d.Works},
	{Group: "Commands", Name: "commands.run_stream, refused", Route: "POST /sandboxes/{id}/commands/stream", Support: d.Differs,
		How: "the Python SDK does not look at the status, and would return an empty success: it gets exit code 1 and the reason in stderr"},
	{Group: "Commands", Name: "commands.run(background)", Route: "POST /sandboxes/{id}/commands", Support: d.Works},
	{Group: "Commands", Name: "handle.wait", Route: "GET /sandboxes/{id}/commands/{pid}/wait", Support: d.Works},
	{Group: "Commands", Name: "commands.list", Route: "GET /sandboxes/{id}/commands", Support: d.Differs, How: "`envs` is always empty"},
	{Group: "Commands", Name: "commands.send_stdin", Route: "POST /sandboxes/{id}/commands/{pid}/stdin", Support: d.Works},
	{Group: "Commands", Name: "commands.kill", Route: "DELETE /sandboxes/{id}/commands/{pid}", Support: d.Works},
	{Group: "Commands", Name: "commands.connect", Support: d.Works},

	{Group: "Terminals", Name: "pty.create", Route: "POST /sandboxes/{id}/pty", Support: d.Works},
	{Group: "Terminals", Name: "pty.send_stdin, resize", Route: "PATCH /sandboxes/{id}/pty/{pid}", Support: d.Works},
	{Group: "Terminals", Name: "pty.connect", Route: "GET /sandboxes/{id}/pty/{pid}/stream", Support: d.Differs, How: "a later subscriber gets what was said before, too"},
	{Group: "Terminals", Name: "pty.kill", Route: "DELETE /sandboxes/{id}/pty/{pid}", Support: d.Works},

	{Group: "Stdio", Name: "stdio.start", Route: "POST /sandboxes/{id}/stdio", Support: d.Works},
	{Group: "Stdio", Name: "process.send_stdin, close_stdin", Route: "POST /sandboxes/{id}/stdio/{cmd_id}/stdin", Support: d.Works},
	{Group: "Stdio", Name: "process.stream, resumed", Route: "GET /sandboxes/{id}/stdio/{cmd_id}/stream", Support: d.Works},
	{Group: "Stdio", Name: "process.kill", Route: "DELETE /sandboxes/{id}/stdio/{cmd_id}", Support: d.Works},

	{Group: "Files", Name: "files.write, read", Route: "POST /sandboxes/{id}/files", Support: d.Works},
	{Group: "Files", Name: "files.write, read bytes", Route: "PUT /sandboxes/{id}/files/raw", Support: d.Works},
	{Group: "Files", Name: "files.read(format=\"stream\")", Route: "GET /sandboxes/{id}/files", Support: d.Works, Only: []string{python}},
	{Group: "Files", Name: "files.write_files", Route: "POST /sandboxes/{id}/files/batch", Support: d.Works},
	{Group: "Files", Name: "files.list", Route: "GET /sandboxes/{id}/files/list", Support: d.Works},
	{Group: "Files", Name: "files.exists, get_info", Route: "GET /sandboxes/{id}/files/info", Support: d.Works},
	{Group: "Files", Name: "files.rename", Route: "PATCH /sandboxes/{id}/files", Support: d.Works},
	{Group: "Files", Name: "files.remove", Route: "DELETE /sandboxes/{id}/files", Support: d.Works},
	{Group: "Files", Name: "files.make_dir", Route: "POST /sandboxes/{id}/files/mkdir", Support: d.Works},
	{Group: "Files", Name: "files.watch_dir", Route: "POST /sandboxes/{id}/files/watch", Support: d.Works},
	{Group: "Files", Name: "download_url, upload_url", Route: "GET /sandboxes/{id}/files/raw", Support: d.Works},

	{Group: "Ports", Name: "get_host", Route: "ANY /sandboxes/{id}/ports/{port}/{path}", Support: d.Differs,
		How: "a published port and a signed link work as they do with the native API"},
	{Group: "Ports", Name: "get_mcp_url", Support: d.Works},

	{Group: "Network", Name: "create(allow_internet_access)", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Network", Name: "create(network)", Route: "POST /sandboxes", Support: d.Differs,
		How: "`*.suffix` does not match the bare name; private networks stay closed unless the operator opens them"},
	{Group: "Network", Name: "create(network, security.network)", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Network", Name: "create(network) without sense", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Network", Name: "create(allow_public_traffic)", Route: "POST /sandboxes", Support: d.Works},
	{Group: "Network", Name: "create(mask_request_host)", Route: "POST /sandboxes", Support: d.Refused,
		How: "a program in a sandbox is called `localhost` and its port", Error: invalidError, Message: "network.mask_request_host"},

	refuse("create(security.pii)", "pii"),
	refuse("create(security.injection_defense)", "injection_defense"),
	refuse("create(security.toxicity)", "toxicity"),
	refuse("create(security.code_security)", "code_security"),
	refuse("create(security.invisible_text)", "invisible_text"),
	refuse("create(security.content_gate)", "content_gate"),
	refuse("create(security.custom_policy)", "custom_policy"),
	refuse("create(security.transformations)", "transformations"),
	refuse("create(volumes)", "volumes"),
	refuse("create(vault_refs)", "vault_refs"),
	{Group: "Not yet", Name: "create(vault_refs) by name", Route: "GET /teams", Support: d.Refused, How: "not there yet", Error: invalidError,
		Message: "vault", Only: []string{newPython, typescript}},
	{Group: "Not yet", Name: "Volumes", Route: "GET /volumes", Support: d.Refused, How: "not there yet", Error: invalidError, Message: "volumes"},
	{Group: "Not yet", Name: "Vault", Route: "GET /teams", Support: d.Refused, How: "not there yet", Error: invalidError, Message: "vault", Only: []string{newPython, typescript}},
	{Group: "Not yet", Name: "Template.build", Route: "POST /templates/build", Support: d.Refused, How: "templates are built with `ringfence template build`",
		Error: invalidError, Message: "templates"},
	{Group: "Not yet", Name: "Governance", Route: "GET /governance/packs", Support: d.Refused, How: "not there yet", Error: invalidError, Message: "governance"},
}

func refuse(name, message string) d.Operation {
	return d.Operation{Group: "Not yet", Name: name, Route: "POST /sandboxes", Support: d.Refused, How: "not there yet", Error: invalidError, Message: message}
}
