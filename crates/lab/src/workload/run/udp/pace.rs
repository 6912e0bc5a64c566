//! Sends a stream of datagrams at its pace, on a thread that sleeps by the nanosecond.
//! Clients send echoes and data with it, servers data. Late ones are sent at once, so that the mean rate is kept.

use std::{io, thread, time::Duration};

use super::{
    flow::is_full,
    message::{Head, Stream},
};
use crate::workload::run::clock::monotonic_ns;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    stream: Stream,
    head: Head,
}

impl Pace {
    pub(super) fn new(stream: Stream, head: Head) -> Self {
        Self { stream, head }
    }

    /// Sends all by `send`; answers with how many went. What the kernel has no room for is not sent again: a rate is constant.
    ///
    /// # Errors
    /// Those of `send` that are not about room.
    pub(super) fn run(self, send: impl Fn(&[u8]) -> io::Result<()>) -> io::Result<u32> {
        let (began, mut datagram, mut sent) = (monotonic_ns(), Vec::new(), 0);
        for number in 0..self.stream.count {
            let due = u64::from(number).saturating_mul(self.stream.interval);
            sleep_until(began.saturating_add(due));
            let head = Head {
                number,
                sent: monotonic_ns(),
                ..self.head
            };
            head.fill(self.stream.size, &mut datagram);
            match send(&datagram) {
                Ok(()) => sent += 1,
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

fn sleep_until(due: u64) {
    let left = due.saturating_sub(monotonic_ns());
    if left > 0 {
        thread::sleep(Duration::from_nanos(left));
    }
}
