package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

// refused checks that an error is the refusal of a quota, by its name.
func refused(t *testing.T, err error, code ringfence.Code, quota string) {
	t.Helper()
	var e *ringfence.Error
	if !errors.As(err, &e) || e.Code != code || e.Field != quota || e.Hint == "" {
		t.Errorf("%v, want %s for %s", err, code, quota)
	}
}

func TestQuotas(t *testing.T) {
	small := ringfence.Size{VCPU: 1, MemoryMiB: 256, DiskMiB: 100}
	for _, c := range []struct {
		quota engine.Quota
		key   string
		alone ringfence.Size // more than all of the quota; none: there is no such size
	}{
		{engine.Quota{Sandboxes: 2}, "quota_sandboxes", ringfence.Size{}},
		{engine.Quota{VCPU: 2}, "quota_vcpu", ringfence.Size{VCPU: 3, MemoryMiB: 256, DiskMiB: 100}},
		{engine.Quota{MemoryMiB: 600}, "quota_memory_mib", ringfence.Size{VCPU: 1, MemoryMiB: 700, DiskMiB: 100}},
		{engine.Quota{DiskMiB: 250}, "quota_disk_mib", ringfence.Size{VCPU: 1, MemoryMiB: 256, DiskMiB: 300}},
	} {
		t.Run(c.key, func(t *testing.T) {
			m := newMachine(t)
			m.quota = c.quota
			d := m.start(fake.Options{})
			ask := func() (*ringfence.Sandbox, error) {
				sb, _, err := d.Create(context.Background(), engine.CreateRequest{Project: project, Size: small})
				return sb, err
			}
			if c.alone != (ringfence.Size{}) {
				_, _, err := d.Create(context.Background(), engine.CreateRequest{Project: project, Size: c.alone})
				refused(t, err, ringfence.CodePermissionDenied, c.key)
			}
			// However many ask at once, two get in.
			var wg sync.WaitGroup
			var mu sync.Mutex
			var made []*ringfence.Sandbox
			for range 8 {
				wg.Go(func() {
					sb, err := ask()
					if err != nil {
						refused(t, err, ringfence.CodeResourceExhausted, c.key)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					made = append(made, sb)
				})
			}
			wg.Wait()
			if len(made) != 2 {
				t.Fatalf("%d were made, want 2", len(made))
			}
			// The next daemon counts the same.
			m.stop(d)
			d = m.start(fake.Options{})
			_, err := ask()
			refused(t, err, ringfence.CodeResourceExhausted, c.key)
			// What is paused takes no cores and no memory, but its place and disk.
			if _, err := d.Pause(t.Context(), project, made[0].ID); err != nil {
				t.Fatal(err)
			}
			sb, err := ask()
			if c.quota.Sandboxes > 0 || c.quota.DiskMiB > 0 {
				refused(t, err, ringfence.CodeResourceExhausted, c.key)
				if _, err := d.Resume(t.Context(), project, made[0].ID); err != nil {
					t.Error(err)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				_, err = d.Resume(t.Context(), project, made[0].ID)
				refused(t, err, ringfence.CodeResourceExhausted, c.key)
				if err := d.Kill(t.Context(), project, sb.ID); err != nil {
					t.Fatal(err)
				}
				if _, err := d.Resume(t.Context(), project, made[0].ID); err != nil {
					t.Error(err)
				}
			}
			_, err = ask()
			refused(t, err, ringfence.CodeResourceExhausted, c.key)
			if err := d.Kill(t.Context(), project, made[1].ID); err != nil {
				t.Fatal(err)
			}
			if _, err := ask(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestQuotaOfSnapshots(t *testing.T) {
	m := newMachine(t)
	m.quota = engine.Quota{Snapshots: 2}
	d := m.start(fake.Options{})
	a, b := m.create(d, engine.CreateRequest{}), m.create(d, engine.CreateRequest{})
	sn, err := d.Snapshot(t.Context(), project, a.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	for _, id := range []string{a.ID, b.ID} {
		wg.Go(func() {
			_, err := d.Snapshot(context.Background(), project, id, "")
			errs <- err
		})
	}
	wg.Wait()
	first, second := <-errs, <-errs
	if first == nil {
		first = second
	}
	refused(t, first, ringfence.CodeResourceExhausted, "quota_snapshots")
	m.mustAnswer(d, a.ID)
	m.mustAnswer(d, b.ID)
	if _, err := d.Fork(t.Context(), project, a.ID, 1); err != nil {
		t.Errorf("a fork needs none: %v", err)
	}
	if err := d.DeleteSnapshot(t.Context(), project, sn.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Snapshot(t.Context(), project, b.ID, ""); err != nil {
		t.Error(err)
	}
}

func TestQuotaOfCreates(t *testing.T) {
	m := newMachine(t)
	m.quota = engine.Quota{Creates: 2}
	d := m.start(fake.Options{})
	errs := make(chan error, 20)
	for range cap(errs) {
		go func() {
			_, _, err := d.Create(context.Background(), engine.CreateRequest{Project: project})
			errs <- err
		}()
	}
	made := 0
	for range cap(errs) {
		err := <-errs
		if err == nil {
			made++
			continue
		}
		refused(t, err, ringfence.CodeResourceExhausted, "quota_creates_per_second")
		var e *ringfence.Error
		if errors.As(err, &e) && e.RetryAfterSeconds != 1 {
			t.Errorf("it may be tried again after %d s, want 1", e.RetryAfterSeconds)
		}
	}
	if made < 2 || made == cap(errs) {
		t.Errorf("%d were made of %d at once, with 2 a second", made, cap(errs))
	}
}
