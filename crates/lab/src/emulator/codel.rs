//! CoDel, the controlled delay of RFC 8289: drops, or marks, when packets have waited too long for too long.
//! `queue` asks it about every packet that it is about to hand over. The names are those of the RFC's section 5.

/// What CoDel says about the packet at the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it over.
    Pass,
    /// Drop it, or mark it and hand it over; then tell [`CoDel::acted`].
    Act,
}

/// The state of one queue. All times in nanoseconds.
#[derive(Clone, Debug)]
pub struct CoDel {
    target: u64,
    interval: u64,
    /// A queue of no more octets is never too long: one packet.
    max_packet: u64,
    /// When the sojourn time will have been above the target for an interval; 0: it is below.
    first_above_time: u64,
    drop_next: u64,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl CoDel {
    /// A queue that was never too long.
    #[must_use]
    pub fn new(target: u64, interval: u64, max_packet: u64) -> Self {
        Self {
            target,
            interval,
            max_packet,
            first_above_time: 0,
            drop_next: 0,
            count: 0,
            last_count: 0,
            dropping: false,
        }
    }

    /// `now`: a packet that has waited for `sojourn` is at the head; `behind` octets wait behind it.
    /// `again`: another packet was dropped just before it.
    pub fn judge(&mut self, now: u64, sojourn: u64, behind: u64, again: bool) -> Verdict {
        let above = self.is_above(now, sojourn, behind);
        if !above {
            self.dropping = false;
            return Verdict::Pass;
        }
        let due = self.dropping && now >= self.drop_next;
        let begins = !self.dropping && !again;
        if due || begins {
            Verdict::Act
        } else {
            Verdict::Pass
        }
    }

    /// `ok_to_drop` of the RFC's `dodequeue`.
    fn is_above(&mut self, now: u64, sojourn: u64, behind: u64) -> bool {
        if sojourn < self.target || behind <= self.max_packet {
            self.first_above_time = 0;
            return false;
        }
        if self.first_above_time == 0 {
            self.first_above_time = now.saturating_add(self.interval);
            return false;
        }
        now >= self.first_above_time
    }

    /// The head was dropped or marked.
    pub fn acted(&mut self, now: u64) {
        if self.dropping {
            self.count = self.count.saturating_add(1);
            self.drop_next = self.control_law(self.drop_next);
            return;
        }
        self.dropping = true;
        // "If min went above TARGET close to when it last went below, assume that the drop rate that controlled the queue
        // on the last cycle is a good starting point to control it now."
        let delta = self.count.saturating_sub(self.last_count);
        let recent = now.saturating_sub(self.drop_next) < self.interval.saturating_mul(16);
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.control_law(now);
    }

    fn control_law(&self, from: u64) -> u64 {
        // The square root is exact to the last bit on every platform; the interval has fewer bits than a double.
        let gap = std::time::Duration::from_nanos(self.interval);
        let gap = gap.div_f64(f64::from(self.count.max(1)).sqrt());
        from.saturating_add(u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX))
    }
}
