package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
)

// ledger is what workers have done, and what they believe of their leases.
type ledger struct {
	sync.Mutex
	done  map[string]int64 // by partition, the offset up to which it is processed
	until map[string]time.Time
	who   map[string]int
	errs  []error
	// over says that the power was cut: what is answered now counts no more.
	over bool
}

// TestLeasesCrash proves that many workers at a time process every record at
// least once and in its order, and never two of them one partition, while the
// server is killed under them and some of them die with what they have.
func TestLeasesCrash(t *testing.T) {
	const partitions, records, workers = 8, 200, 12
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			fs := disk.NewMem()
			b := groupBroker(t, fs)
			create(t, b, "orders", partitions, nil)
			for p := range int32(partitions) {
				for range records / 10 {
					produce(t, b, AcksAll, "orders", p, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
				}
			}
			led := &ledger{done: map[string]int64{}, until: map[string]time.Time{}, who: map[string]int{}}
			rng := rand.New(rand.NewPCG(seed, 9))
			for life := 0; ; life++ {
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range workers {
					own := rand.New(rand.NewPCG(seed, uint64(100*life+i)))
					all.Go(func() { led.work(ctx, b, life*workers+i, own) })
				}
				timer := time.NewTimer(time.Duration(20+rng.IntN(200)) * time.Millisecond)
				<-timer.C
				led.Lock()
				led.over = true
				left := fs.CrashClone(float64(rng.IntN(2)), nil)
				led.Unlock()
				cancel()
				_ = b.Close()
				all.Wait()
				fs = left
				b = groupBroker(t, fs)
				awaitGroups(t, b)
				led.over = false
				if led.finished(partitions, records) || len(led.errs) > 0 || life > 500 {
					break
				}
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			for _, err := range led.errs {
				t.Error(err)
			}
			if !led.finished(partitions, records) {
				t.Errorf("not all was done: %v", led.done)
			}
		})
	}
}

func (l *ledger) finished(partitions int, records int64) bool {
	for p := range partitions {
		if l.done[fmt.Sprint("orders/", p)] < records {
			return false
		}
	}
	return true
}

// work takes, processes and acks until ctx ends; now and then it dies and another
// one comes in its place.
func (l *ledger) work(ctx context.Context, b *Broker, me int, rng *rand.Rand) {
	for ctx.Err() == nil {
		leases, err := b.TakeLeases(ctx, auth.Anonymous, "g", &LeaseRequest{
			Topics: []string{"orders"}, MaxPartitions: 1 + rng.IntN(2), MaxRecords: 1 + rng.IntN(20), Lease: MinLease, Wait: time.Second,
		})
		if err != nil {
			return // the server is gone, or goes
		}
		for i := range leases {
			lease := &leases[i]
			lease.Section.Release()
			l.process(lease, me)
			switch rng.IntN(12) {
			case 0: // it dies
			case 1:
				l.giveUp(lease, me)
				_, _ = b.ReleaseLease(ctx, auth.Anonymous, "g", lease.ID, ReleaseRequest{Upto: -1})
			case 2:
				_, _ = b.AckLease(ctx, auth.Anonymous, "g", lease.ID, lease.First+(lease.Next-lease.First)/2)
				fallthrough
			default:
				l.giveUp(lease, me)
				_, _ = b.AckLease(ctx, auth.Anonymous, "g", lease.ID, -1)
			}
		}
	}
}

// giveUp says that the worker does not believe to have the partition any more: it
// is about to give it back.
func (l *ledger) giveUp(lease *Lease, me int) {
	l.Lock()
	defer l.Unlock()
	if part := fmt.Sprint(lease.Topic, "/", lease.Partition); l.who[part] == me {
		delete(l.who, part)
	}
}

// process begins to work on a lease: nobody else may believe to have the
// partition, and everything before it must be done.
func (l *ledger) process(lease *Lease, me int) {
	l.Lock()
	defer l.Unlock()
	if l.over {
		return
	}
	part := fmt.Sprint(lease.Topic, "/", lease.Partition)
	now := time.Now()
	if other, held := l.who[part]; held && now.Before(l.until[part]) {
		l.errs = append(l.errs, fmt.Errorf("%s is leased to %d until %v and at %v to %d", part, other, l.until[part], now, me))
	}
	if lease.First > l.done[part] {
		l.errs = append(l.errs, fmt.Errorf("%s: a lease from %d, done is up to %d", part, lease.First, l.done[part]))
	}
	l.done[part] = max(l.done[part], lease.Next)
	l.who[part], l.until[part] = me, lease.Deadline
}
