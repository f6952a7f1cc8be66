package api

import (
	"ringfence.dev/ringfence"
)

type changeBody struct {
	Type       ringfence.ChangeType `json:"type"`
	Path       string               `json:"path"`
	PathBase64 *string              `json:"path_base64,omitempty"`
	IsDir      bool                 `json:"is_dir"`
	Cookie     uint32               `json:"cookie,omitempty"`
}

// watchFiles sends what happens to files as events.
func (c *call) watchFiles() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	recursive, err := c.flag("recursive", false)
	if err != nil {
		return err
	}
	to := newEvents(c.w)
	s := &liveStream{to: to, w: c.w, quiet: c.KeepAlive}
	send := func(name string, body any) error {
		return s.send(0, func() error { return to.event(name, body) })
	}
	return s.serve(c, func() (func() error, error) {
		err := c.Engine.WatchFiles(c.r.Context(), f, recursive, func() error { return send("ready", struct{}{}) },
			func(change ringfence.FileChange) error {
				if change.Type == ringfence.ChangeOverflow {
					return send("overflow", struct{}{})
				}
				b := changeBody{Type: change.Type, IsDir: change.IsDir, Cookie: change.Cookie}
				b.Path, b.PathBase64 = text([]byte(change.Path))
				return send("change", b)
			})
		return func() error { return to.event("gone", struct{}{}) }, err
	})
}
