// Package escape holds tests that try from inside a sandbox what must stay
// impossible: docs/hardening.md says what each row of the table is about.
package escape
