package ws

// credit is how much a subscription may be sent. It is spent by data frames and
// comes back by itself once a frame is written (auto), or by the client.
type credit struct {
	auto bool
	// The window of an automatic credit.
	windowBytes, windowRecords int64
	// What is left. A record larger than the bytes that are left goes all the
	// same, so bytes may be below zero.
	bytes, records int64
}

func newCredit(g grant) credit {
	return credit{auto: g.auto, windowBytes: g.bytes, windowRecords: g.records, bytes: g.bytes, records: g.records}
}

// open reports whether anything may be sent.
func (c *credit) open() bool { return c.bytes > 0 && c.records > 0 }

func (c *credit) spend(bytes, records int) {
	c.bytes -= int64(bytes)
	c.records -= int64(records)
}

// add is the client's grant. For an automatic credit it widens the window.
func (c *credit) add(g grant) {
	c.bytes = min(c.bytes+g.bytes, maxCredit)
	c.records = min(c.records+g.records, maxCredit)
	if c.auto {
		c.windowBytes = min(c.windowBytes+g.bytes, maxCredit)
		c.windowRecords = min(c.windowRecords+g.records, maxCredit)
	}
}

// written tops an automatic credit up.
func (c *credit) written() {
	if c.auto {
		c.bytes, c.records = c.windowBytes, c.windowRecords
	}
}
