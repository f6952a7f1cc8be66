package superserve

import "ringfence.dev/ringfence/internal/dialect"

// Names of packages, as the table has them.
const (
	python   = "python"
	python11 = "python-0.11.4"
)

// Operations is all that a program can do with the SDKs. Names are Python's where the two
// languages differ by case alone.
var Operations = operations()

func operations() []dialect.Operation {
	var table []dialect.Operation
	group := ""
	add := func(o dialect.Operation) { o.Group = group; table = append(table, o) }
	works := func(name, route string, only ...string) {
		add(dialect.Operation{Name: name, Route: route, Support: dialect.Works, Only: only})
	}
	differs := func(name, route, how string, only ...string) {
		add(dialect.Operation{Name: name, Route: route, Support: dialect.Differs, How: how, Only: only})
	}
	refused := func(name, route, class, message, how string, only ...string) {
		add(dialect.Operation{Name: name, Route: route, Support: dialect.Refused, Error: class, Message: message, How: how, Only: only})
	}

	group = "Sandboxes"
	works("Sandbox.create", "POST /sandboxes")
	differs("Sandbox.create(from_template)", "POST /sandboxes", "`superserve/base` and `superserve/code-interpreter` are there, on Debian and in their sizes here; others are not found")
	works("Sandbox.create(metadata, env_vars)", "POST /sandboxes")
	differs("Sandbox.create(network)", "POST /sandboxes", "an allowed name can be looked up without a rule for a resolver; IPv6 goes where it is not denied, and `0.0.0.0/0` denies it too; entries may have a port")
	works("Sandbox.create(timeout_seconds)", "POST /sandboxes")
	works("Sandbox.create(auto_delete_seconds)", "POST /sandboxes")
	works("Sandbox.create(from_snapshot)", "POST /sandboxes", python11)
	refused("Sandbox.create(secrets)", "POST /sandboxes", "ValidationError", "secrets are not supported yet", "nothing would protect them")
	works("Sandbox.create(preview_access=public)", "POST /sandboxes", python)
	refused("Sandbox.create(preview_access=private)", "POST /sandboxes", "ValidationError", "preview_access", "publish each port as private instead", python)
	works("Sandbox.connect", "POST /sandboxes/{id}/activate")
	works("Sandbox.list", "GET /sandboxes")
	works("Sandbox.list(metadata)", "GET /sandboxes")
	works("Sandbox.list(status, limit, offset)", "GET /sandboxes", python)
	works("Sandbox.get_info", "GET /sandboxes/{id}")
	works("Sandbox.pause", "POST /sandboxes/{id}/pause")
	works("Sandbox.pause(wait)", "POST /sandboxes/{id}/pause", python11)
	works("Sandbox.resume", "POST /sandboxes/{id}/resume")
	works("Sandbox.update(metadata)", "PATCH /sandboxes/{id}")
	works("Sandbox.update(network)", "PATCH /sandboxes/{id}")
	works("Sandbox.update(timeout_seconds)", "PATCH /sandboxes/{id}")
	works("Sandbox.update(auto_delete_seconds)", "PATCH /sandboxes/{id}")
	works("Sandbox.update_by_id", "PATCH /sandboxes/{id}")
	differs("Sandbox.get_network_log", "GET /sandboxes/{id}/network", "connections of TCP; the newest 1000 since the sandbox was started or resumed; no rows of the kind `request`")
	works("Sandbox.kill", "DELETE /sandboxes/{id}")
	works("Sandbox.kill_by_id", "DELETE /sandboxes/{id}")
	refused("Sandbox.attach_secret", "POST /sandboxes/{id}/secrets", "ValidationError", "secrets are not supported yet", "nothing would protect them")
	refused("Sandbox.detach_secret", "DELETE /sandboxes/{id}/secrets/{key}", "NotFoundError", "secrets are not supported yet", "none is bound")

	group = "Commands"
	works("commands.run", "POST /exec")
	works("commands.run(cwd, env)", "POST /exec")
	works("commands.run(timeout)", "POST /exec")
	differs("commands.run without a timeout", "POST /exec", "it ends after 29 s with 124, as the SDK gives up after 30 s")
	differs("commands.run in the background", "POST /exec", "the call ends with the command, also when a child of it keeps its output open")
	works("commands.run of bytes that are no text", "POST /exec")
	differs("commands.run with much output", "POST /exec", "what makes the answer larger than 10 MiB is cut off, with a line on stderr that says so")
	works("commands.run(on_stdout, on_stderr)", "POST /exec/stream")
	works("commands.run(on_stdout, timeout)", "POST /exec/stream")
	works("commands.run wakes a paused sandbox", "POST /exec")
	works("commands.spawn", "GET /exec/connect")
	works("commands.spawn(cwd, env, timeout)", "GET /exec/connect")
	works("session.kill", "GET /exec/connect")

	group = "Files"
	works("files.write", "POST /files?path=")
	works("files.write of a file that a command reads", "POST /files?path=")
	works("files.read", "GET /files?path=")
	works("files.read_text", "GET /files?path=")
	works("files.download_dir", "GET /files?path=&format=zip")
	works("files.download_dir of a file", "GET /files?path=&format=zip")
	refused("files.read of a file that is missing", "GET /files?path=", "NotFoundError", "no such file", "as in the original")
	refused("files.read of a directory", "GET /files?path=", "ValidationError", "directory", "as in the original")
	refused("files.write below /proc", "POST /files?path=", "ValidationError", "not for files", "as in the original")

	group = "Ports"
	differs("Sandbox.get_preview_url", "https://{port}-{id}.sandbox.superserve.ai", "a port that is not published opens to who has the API key, which the preload for Node.js sends along")
	works("Sandbox.publish_preview_port", "POST /sandboxes/{id}/preview-ports", python)
	differs("Sandbox.publish_preview_port(access=private)", "POST /sandboxes/{id}/preview-ports", "each port is private until it is published, and needs no call to be", python)
	differs("Sandbox.list_preview_ports", "GET /sandboxes/{id}/preview-ports", "public ports alone are listed", python)
	works("Sandbox.unpublish_preview_port", "DELETE /sandboxes/{id}/preview-ports/{port}", python)
	works("Sandbox.get_preview_token", "POST /sandboxes/{id}/preview-ports/{port}/token", python)
	works("Sandbox.get_signed_preview_url", "POST /sandboxes/{id}/preview-ports/{port}/token", python)
	refused("Sandbox.rotate_preview_token", "POST /sandboxes/{id}/preview-ports/{port}/token/rotate", "ValidationError", "cannot be rotated", "give tokens a short life", python)

	group = "Snapshots"
	differs("Sandbox.snapshot", "POST /sandboxes/{id}/snapshot", "`idempotency_key` is not kept: a repeated call makes another snapshot", python11)
	works("Sandbox.snapshots", "GET /sandboxes/{id}/snapshots", python11)
	works("Snapshot.get", "GET /snapshots/{id}", python11)
	works("Snapshot.delete", "DELETE /snapshots/{id}", python11)

	group = "Templates"
	works("Template.list", "GET /templates")
	works("Template.connect", "GET /templates/{name}")
	works("Template.get_info", "GET /templates/{name}")
	differs("Template.list_builds", "GET /templates/{name}/builds", "there are none: templates are built on the server")
	refused("Template.create", "POST /templates", "ValidationError", "templates cannot be made", "`ringfence template build` makes one on the server")
	refused("Template.rebuild", "POST /templates/{name}/builds", "ValidationError", "templates cannot be made", "`ringfence template build` makes one on the server")
	refused("Template.delete", "DELETE /templates/{name}", "ValidationError", "templates cannot be made", "templates are read only")
	refused("Template.get_build", "GET /templates/{name}/builds/{build}", "NotFoundError", "has no builds", "templates are built on the server")

	group = "Secrets"
	refused("Secret.create", "POST /secrets", "ValidationError", "secrets are not supported yet", "nothing would protect them")
	refused("Secret.get", "GET /secrets/{name}", "NotFoundError", "secrets are not supported yet", "there are none")
	works("Secret.list", "GET /secrets")
	works("Secret.delete_by_name", "DELETE /secrets/{name}")
	differs("Provider.list", "GET /providers", "there are none")

	group = "Desktop"
	refused("desktop.screenshot", "POST /superserve.boxd.v1.DesktopService/Screenshot", "NotFoundError", "there is no", "there is no template with a desktop", python11)

	group = "Errors"
	refused("a call without a valid API key", "", "AuthenticationError", "API key", "as in the original")
	refused("a call on an unknown sandbox", "", "NotFoundError", "there is no sandbox", "as in the original")
	refused("a command in a sandbox that was killed", "", "NotFoundError", "has ended", "as in the original")
	refused("a template that is not there", "", "NotFoundError", "there is no template", "as in the original")
	refused("a network rule that is none", "", "ValidationError", "deny_out", "as in the original")
	refused("pause of a sandbox that is paused", "", "ConflictError", "paused already", "as in the original")
	refused("resume of a sandbox that is active", "", "ConflictError", "not paused", "as in the original")
	refused("update(network) of a sandbox that is paused", "", "ConflictError", "cannot be changed", "as in the original")
	return table
}

// Document is docs/compatibility/superserve.md.
func Document() []byte { return dialect.Document(introduction, Operations) }

const introduction = `
# Superserve's SDKs

Programs that were written for ` + "`superserve` (PyPI) and `@superserve/sdk`" + ` (npm) run here unchanged, with a preload; see
[moving here from Superserve](../move-from-superserve.md). Each row was done with the published packages of the versions 0.8.3 and 0.11.4
(Python) and 0.8.1 (TypeScript), in a network without a way out. Names are Python's; TypeScript's are the same in camel case.

What holds for all of it:

- ` + "`timeout_seconds`" + ` is how long a sandbox may be active. Then it is paused, with what runs in it; each resume starts the time anew. A
  buffered command that is paused under its caller raises ` + "`ConflictError`" + `, a streamed one ` + "`SandboxError`" + `.
- A client that goes away ends its command, with all that the command started.
- No answer makes an SDK repeat a command that was started. The one exception is the death of the server itself. A sandbox
  that is killed under a command: ` + "`NotFoundError`" + `; when output has begun to come, or after 240 s, a result with exit code 137 and the reason on stderr.
- A sandbox that has ended is gone, whatever ended it: there is no status ` + "`failed`" + `, and the message of the error says why it ended.
- ` + "`auto_delete_seconds`, `idle_timeout_seconds`" + `, metadata and limits are as in the original. Unknown fields of requests are ignored.
- Commands run as root with the home directory ` + "`/home/user`" + `, where they start.
- Private networks, cloud metadata, the host and other sandboxes are out of reach whatever the rules say, and so is port 25 unless a rule names it.
- Access tokens do not change over a pause; they end with their sandbox.
`
