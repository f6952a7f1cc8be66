package declaw

import (
	"net/http"
	"strconv"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

// route is a row of the route table.
type route struct {
	pattern string // of net/http's ServeMux
	data    bool   // the access token of the sandbox in the path opens it too
	handler func(*call) error
}

// routes is all that the dialect answers, beside the ports.
var routes = []route{
	{"POST /sandboxes", false, (*call).create},
	{"GET /sandboxes", false, (*call).list},
	{"POST /sandboxes/kill-many", false, (*call).killMany},
	{"GET /sandboxes/{id}", true, (*call).get},
	{"DELETE /sandboxes/{id}", false, (*call).kill},
	{"GET /sandboxes/{id}/status", true, (*call).status},
	{"PATCH /sandboxes/{id}/timeout", false, (*call).setTimeout},
	{"GET /sandboxes/{id}/metrics", true, (*call).metrics},
	{"POST /sandboxes/{id}/pause", false, (*call).pause},
	{"POST /sandboxes/{id}/resume", false, (*call).resume},
	{"POST /sandboxes/{id}/snapshot", false, (*call).snapshot},
	{"POST /sandboxes/{id}/snapshots", false, (*call).snapshot},
	{"GET /sandboxes/{id}/snapshots", false, (*call).listSnapshots},
	{"DELETE /sandboxes/{id}/snapshots/{snapshot}", false, (*call).deleteSnapshot},
	{"POST /sandboxes/{id}/restore", false, (*call).restore},
	{"GET /snapshots", false, (*call).allSnapshots},

	{"POST /sandboxes/{id}/commands", true, (*call).run},
	{"GET /sandboxes/{id}/commands", true, (*call).listCommands},
	{"POST /sandboxes/{id}/commands/stream", true, (*call).runStream},
	{"GET /sandboxes/{id}/commands/{process}/wait", true, (*call).wait},
	{"DELETE /sandboxes/{id}/commands/{process}", true, (*call).killPID},
	{"POST /sandboxes/{id}/commands/{process}/stdin", true, (*call).textInput},

	{"POST /sandboxes/{id}/pty", true, (*call).openTerminal},
	{"POST /sandboxes/{id}/pty/{process}/stdin", true, (*call).textInput},
	{"PATCH /sandboxes/{id}/pty/{process}", true, (*call).resizeTerminal},
	{"DELETE /sandboxes/{id}/pty/{process}", true, (*call).killPID},
	{"GET /sandboxes/{id}/pty/{process}/stream", true, (*call).terminalStream},

	{"POST /sandboxes/{id}/stdio", true, (*call).startStdio},
	{"POST /sandboxes/{id}/stdio/{process}/stdin", true, (*call).binaryInput},
	{"POST /sandboxes/{id}/stdio/{process}/stdin/close", true, (*call).closeInput},
	{"DELETE /sandboxes/{id}/stdio/{process}", true, (*call).killStdio},
	{"GET /sandboxes/{id}/stdio/{process}/stream", true, (*call).stdioStream},

	{"GET /sandboxes/{id}/files", true, (*call).readFile},
	{"POST /sandboxes/{id}/files", true, (*call).writeText},
	{"DELETE /sandboxes/{id}/files", true, (*call).removeFile},
	{"PATCH /sandboxes/{id}/files", true, (*call).renameFile},
	{"GET /sandboxes/{id}/files/raw", true, (*call).readFile},
	{"PUT /sandboxes/{id}/files/raw", true, (*call).writeRaw},
	{"POST /sandboxes/{id}/files/batch", true, (*call).writeBatch},
	{"GET /sandboxes/{id}/files/list", true, (*call).listFiles},
	{"GET /sandboxes/{id}/files/exists", true, (*call).fileExists},
	{"GET /sandboxes/{id}/files/info", true, (*call).fileInfo},
	{"POST /sandboxes/{id}/files/mkdir", true, (*call).makeDir},
	{"POST /sandboxes/{id}/files/watch", true, (*call).watchDir},

	{"GET /templates", false, (*call).listTemplates},
	{"GET /auth/me", false, (*call).whoAmI},

	// What there is not yet is refused by its name.
	{"/volumes/", false, refused("volumes")},
	{"/volumes", false, refused("volumes")},
	{"/sandboxes/{id}/volumes/", false, refused("volumes")},
	{"/vault/", false, refused("the credential vault")},
	{"/teams/", false, refused("teams and the credential vault")},
	{"/teams", false, refused("teams and the credential vault")},
	{"/templates/", false, refused("building templates over the API")},
	{"/governance/", false, refused("governance packs")},
	{"/accounts/", false, refused("accounts, wallets and usage")},
}

// refused answers with a message that names what there is not. It is a mistake of the
// caller's, so that no SDK asks again.
func refused(what string) func(*call) error {
	return func(*call) error {
		return ringfence.Errorf(ringfence.CodeNotYetSupported, "this server does not support %s yet", what).
			WithHint("docs/compatibility/declaw.md lists what there is")
	}
}

func (c *call) listTemplates() error {
	all, err := c.Engine.Templates.List()
	if err != nil {
		return err
	}
	type body struct {
		TemplateID string  `json:"template_id"`
		Alias      string  `json:"alias"`
		CreatedAt  *string `json:"created_at"`
	}
	out := []body{}
	for _, t := range all {
		out = append(out, body{templatePrefix + t.Name, t.Name, wireTime(t.BuiltAt)})
	}
	return c.reply(http.StatusOK, map[string]any{"templates": out})
}

func (c *call) whoAmI() error {
	return c.reply(http.StatusOK, map[string]string{"owner_id": c.who.Project})
}

// portOf reads /sandboxes/{id}/ports/{port}/…. It looks at the path as it was sent: what
// comes after is the program's in the sandbox.
func portOf(r *http.Request) (dialect.Port, bool) {
	const before, between = "/sandboxes/", "ports/"
	tail, ok := strings.CutPrefix(r.URL.EscapedPath(), before)
	id, tail, cut := strings.Cut(tail, "/")
	if !ok || !cut || !ringfence.ValidSandboxID(id) {
		return dialect.Port{}, false
	}
	tail, ok = strings.CutPrefix(tail, between)
	digits, rest, _ := strings.Cut(tail, "/")
	port, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil || port == 0 || digits[0] == '0' || digits[0] == '+' {
		return dialect.Port{}, false
	}
	return dialect.Port{Sandbox: id, Port: int(port), Prefix: before + id + "/" + between + digits, Rest: "/" + rest}, true
}

// ownPort is the port of Declaw's own program in a sandbox, which nobody may reach.
const ownPort = 49983

func (h *handler) servePort(w http.ResponseWriter, r *http.Request, p dialect.Port) {
	if p.Port != ownPort {
		h.ServePort(w, r, p)
		return
	}
	h.serve(route{p.Prefix, true, func(*call) error {
		return ringfence.Errorf(ringfence.CodePermissionDenied, "port %d is the sandbox's own", ownPort)
	}}, w, r)
}
