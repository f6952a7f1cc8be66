package fake_test

import (
	"context"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/drivertest"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/guestproto"
)

func testSpec(*testing.T) driver.Spec {
	return driver.Spec{
		ID: ringfence.NewSandboxID(), Hostname: "box",
		Size: ringfence.Size{VCPU: 1, MemoryMiB: 256, DiskMiB: 64},
	}
}

func TestConformance(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Open: func(*testing.T) driver.Driver { return fake.New(fake.Options{}) },
		Spec: testSpec,
	})
}

// TestConformanceSharedHost is the same with sandboxes that outlive their driver.
func TestConformanceSharedHost(t *testing.T) {
	host := fake.NewHost()
	open := func(*testing.T) driver.Driver { return fake.New(fake.Options{Host: host}) }
	drivertest.Run(t, drivertest.Harness{
		Open: open,
		Spec: testSpec,
		Abandon: func(t *testing.T, spec driver.Spec) {
			d := open(t)
			i, err := d.Create(context.Background(), spec)
			if err != nil {
				t.Fatal(err)
			}
			c := drivertest.Attach(t, i, spec)
			drivertest.Start(t, c, guestproto.ProcessStart{ID: drivertest.AbandonedProcess, Shell: "sleep 1000"})
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		},
	})
}
