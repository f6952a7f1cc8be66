package client_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"ringfence.dev/ringfence/client"
)

// A cell that a model wrote: write it, run it, fetch the chart that it saved.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Options{}) // RINGFENCE_URL, RINGFENCE_API_KEY
	if err != nil {
		log.Fatal(err)
	}
	sandbox, err := c.Create(ctx, client.CreateOptions{Template: "code-interpreter", Timeout: 10 * time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer sandbox.Kill(ctx)

	files := sandbox.Files()
	if _, err := files.Write(ctx, "/home/user/cell.py", strings.NewReader("print(6 * 7)"), client.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	result, err := sandbox.Run(ctx, client.Command{Shell: "python cell.py", Timeout: time.Minute})
	if err != nil {
		log.Fatal(err) // Ringfence could not run it
	}
	fmt.Println(result.ExitCode, string(result.Stdout), string(result.Stderr)) // how it ended

	chart, err := files.Read(ctx, "/home/user/chart.png")
	if err != nil {
		log.Fatal(err)
	}
	defer chart.Close()
	if _, err := io.Copy(os.Stdout, chart); err != nil {
		log.Fatal(err)
	}
}

// Output as it comes, for as long as the command wants.
func ExampleSandbox_Run_streaming() {
	c, err := client.New(client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	result, err := c.Open("abcdefghij0123456789").Run(context.Background(), client.Command{
		Args: []string{"pip", "install", "./wheels/thing.whl"}, Timeout: client.NoTimeout, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err == nil {
		err = result.Err() // an exit code other than 0 as an error
	}
	if err != nil {
		log.Fatal(err)
	}
}
