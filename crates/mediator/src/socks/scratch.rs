//! Buffers that live only between two system calls, one set for each thread, because a UDP flow at rest is to hold none.
//! Associations receive into them, flows receive and encapsulate in them; nobody keeps anything there.

use std::cell::RefCell;

/// The largest datagram, or train of datagrams, that a system call gives or takes.
pub(super) const TRAIN: usize = 65_536;
/// How many trains one call of an association receives.
pub(super) const TRAINS: usize = 16;

/// The buffers. Only the pages that were written to are resident.
#[derive(Debug)]
pub(super) struct Scratch {
    /// `TRAINS` times `TRAIN` octets.
    pub(super) received: Vec<u8>,
    /// What is about to be sent to the program.
    pub(super) sending: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        received: vec![0; TRAINS * TRAIN],
        sending: Vec::with_capacity(TRAIN),
    });
}

/// Lends the thread's buffers; `work` does not await and does not borrow them again.
pub(super) fn with<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    SCRATCH.with_borrow_mut(work)
}
