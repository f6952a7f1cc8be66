// Package template turns a recipe into a template: a read-only EROFS image and a
// record that says how to start in it. Recipes are directories with a
// template.toml; those in templates/ are part of the binary.
//
// A build happens in one directory under the template directory. What it runs
// (Debian's packages, pip, the recipe's scripts) runs in namespaces of its own with
// an environment written from nothing, so that neither the caller's environment
// nor the host's files get there. What a host needs to reach its package
// sources, such as a CA bundle, is lent to the build by mounts that end with it.
package template
