package api

import (
	"net/http"

	"ringfence.dev/ringfence"
)

type keyBody struct {
	ID         string  `json:"id"`
	Name       string  `json:"name"`
	CreatedAt  *string `json:"created_at"`
	LastUsedAt *string `json:"last_used_at"`
}

func keyWire(k ringfence.Key) keyBody {
	return keyBody{ID: k.ID, Name: k.Name, CreatedAt: wireTime(k.CreatedAt), LastUsedAt: wireTime(k.LastUsedAt)}
}

func (c *call) createKey() error {
	var in struct {
		Name string `json:"name"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	k, text, err := c.Engine.CreateKey(c.r.Context(), c.who.Project, in.Name)
	if err != nil {
		return err
	}
	return c.reply(http.StatusCreated, struct {
		ID        string  `json:"id"`
		Name      string  `json:"name"`
		Key       string  `json:"key"`
		CreatedAt *string `json:"created_at"`
	}{k.ID, k.Name, text, wireTime(k.CreatedAt)})
}

func (c *call) listKeys() error {
	keys, err := c.Engine.Keys(c.r.Context(), c.who.Project)
	if err != nil {
		return err
	}
	out := struct {
		Keys []keyBody `json:"keys"`
	}{[]keyBody{}}
	for _, k := range keys {
		out.Keys = append(out.Keys, keyWire(k))
	}
	return c.reply(http.StatusOK, out)
}

func (c *call) deleteKey() error {
	if err := c.Engine.DeleteKey(c.r.Context(), c.who.Project, c.r.PathValue("key")); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
