//! Buffers for flows in which something moves, taken from and given back to a store of each thread. Both directions of the copy loop
//! use them, and the TCP connections of the TUN front end. A flow at rest holds none, and a busy one costs no allocation: giving 64 KiB
//! back to the system for every burst, and faulting them in again for the next, costs more than copying through them.

use std::{cell::RefCell, mem};

use super::BUFFER;

/// How many buffers a thread keeps for later; further ones are freed.
const KEPT: usize = 64;

thread_local! {
    static STORE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Makes `buffer` empty and able to hold [`BUFFER`] octets.
pub(crate) fn provide(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() < BUFFER {
        let stored = STORE.with_borrow_mut(Vec::pop);
        *buffer = stored.unwrap_or_else(|| Vec::with_capacity(BUFFER));
    }
}

/// Takes the buffer back, leaving one that holds nothing. What was in it is forgotten.
pub(crate) fn take_back(buffer: &mut Vec<u8>) {
    let mut buffer = mem::take(buffer);
    if buffer.capacity() < BUFFER {
        return;
    }
    buffer.clear();
    STORE.with_borrow_mut(|store| {
        if store.len() < KEPT {
            store.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_and_the_store_stays_small() {
        let mut buffers = vec![Vec::new(); KEPT + 5];
        buffers.iter_mut().for_each(provide);
        assert!(buffers.iter().all(|buffer| buffer.capacity() >= BUFFER));
        buffers.iter_mut().for_each(take_back);
        assert!(buffers.iter().all(|buffer| buffer.capacity() == 0));
        assert_eq!(STORE.with_borrow(Vec::len), KEPT);
        let mut again = b"old".to_vec();
        provide(&mut again);
        assert!(again.is_empty());
        assert_eq!(STORE.with_borrow(Vec::len), KEPT - 1);
    }
}
