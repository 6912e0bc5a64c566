//! What reading cells costs in allocations: some for each chunk that the channel brought, none for each cell.
//! One test alone in its process, because the allocator that counts is the process's.
#![expect(
    unsafe_code,
    reason = "an allocator that counts passes on what it gets"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell as Counter,
};

use bytes::{Buf, BufMut, BytesMut};
use hoplite_wire::cell::{Cell, CircuitId, Command, LARGEST_VARIABLE, LEN, Reader, write};

thread_local! {
    static COUNT: Counter<usize> = const { Counter::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; the pointer is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CELLS: usize = 10_000;
const CHUNK: usize = 16_384;

/// This many cells as they stand on the wire.
fn stream() -> BytesMut {
    let cell = Cell::new(CircuitId::new(7), Command::RELAY, |out| {
        out.put_bytes(9, 509);
    });
    let mut out = BytesMut::with_capacity(CELLS * LEN);
    let cell = cell.expect("it fits");
    (0..CELLS).for_each(|_| write(&cell, &mut out).expect("it fits"));
    out
}

#[test]
fn ten_thousand_cells_cost_allocations_for_each_chunk_and_none_for_each_cell() {
    let (mut bytes, mut reader) = (stream(), Reader::wide(LARGEST_VARIABLE));
    let (mut read, mut chunks) = (0, 0);
    let before = COUNT.get();
    while bytes.has_remaining() {
        let now = bytes.len().min(CHUNK);
        let mut chunk = BytesMut::with_capacity(CHUNK);
        chunk.put_slice(&bytes[..now]);
        bytes.advance(now);
        reader.push(chunk);
        chunks += 1;
        while let Some(cell) = reader.next().expect("they are well formed") {
            assert_eq!(cell.body.len(), 509);
            read += 1;
        }
    }
    let allocated = COUNT.get() - before;
    assert_eq!((read, chunks), (CELLS, 314));
    // The chunk, what the cells of a chunk share, and the cell that its end cuts in two.
    assert!(allocated <= 3 * chunks, "{allocated} allocations");
}
