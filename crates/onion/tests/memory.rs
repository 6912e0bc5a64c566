//! What a circuit at rest costs in memory: measured by what is allocated, at the client and at each of three relays.
//! One test alone in its process, because the allocator that counts is the process's.
#![expect(
    unsafe_code,
    reason = "an allocator that counts passes on what it gets"
)]

#[path = "net/support.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicIsize, Ordering::Relaxed},
    time::Duration,
};

use hoplite_onion::Config;
use hoplite_overlay::{Isolation, Overlay, Terms, conformance::Far};
use support::{Kind, World};
use tokio::io::AsyncWriteExt;

static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

/// Counts what is allocated and not freed.
struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size().cast_signed(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size().cast_signed(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`; the pointer is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CIRCUITS: u32 = 1000;

fn terms(n: u32) -> Terms {
    Terms {
        isolation: Isolation::new(n.to_be_bytes().to_vec()),
        ..Terms::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_circuits_at_rest_own_less_than_100_kb_each() {
    let world = World::new(Duration::ZERO, Kind::default());
    let onion = world.client(Config {
        isolated: 2000,
        ahead: 0,
        ..Config::default()
    });
    let mut listener = world.far().listen().await.expect("listens");
    let target = listener.target();
    tokio::spawn(async move {
        while let Ok(mut stream) = listener.accept().await {
            tokio::spawn(async move { stream.shutdown().await });
        }
    });
    // What is made once.
    drop(
        onion
            .open_stream(&target, &terms(u32::MAX))
            .await
            .expect("opens"),
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = ALLOCATED.load(Relaxed);
    for n in 0..CIRCUITS {
        let stream = onion.open_stream(&target, &terms(n)).await.expect("opens");
        drop(stream);
        // Not a flood of CREATE2.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.relays[2].circuits(), 1001);
    let each = (ALLOCATED.load(Relaxed) - before) / 1000;
    assert!(
        each < 100 * 1024,
        "{each} bytes at client, three relays and the channels between"
    );
    assert!(each > 1000, "{each} bytes cannot be all");
}
