package engine

import "ringfence.dev/ringfence"

// EmitForTest puts an event on record.
func (e *Engine) EmitForTest(project, sandbox string, t ringfence.EventType, data map[string]any) {
	e.emit(project, sandbox, t, data)
}

// EventBytesForTest says how much is kept of a project's events.
func (e *Engine) EventBytesForTest(project string) int {
	e.events.mu.Lock()
	defer e.events.mu.Unlock()
	return e.events.projects[project].bytes
}
