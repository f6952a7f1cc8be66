// Package ringfence is the domain of Ringfence, a sandbox service for code
// that a model wrote. It holds types, states, error codes and policy values,
// and depends on the standard library alone; every other package points here.
//
// # Glossary
//
//   - Template: a read-only root file system plus how to start in it (user,
//     directory, environment) plus a default size.
//   - Sandbox: one isolated machine made from a template, with an id, an access
//     token, limits, metadata and a deadline.
//   - Driver: what isolates a sandbox. gVisor is the default one.
//   - Guest agent: the program that is PID 1 in every sandbox. Commands and
//     files go through it.
//   - Process: something started in a sandbox. It has an id, a numbered output
//     log, a deadline and an exit.
//   - Control plane: creating, listing and ending sandboxes. Opened by an API key.
//   - Data plane: commands and files of one sandbox. Opened by an API key, or by
//     that sandbox's own access token.
//   - Project: who owns sandboxes and API keys.
package ringfence
