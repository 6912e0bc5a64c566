//! What a download costs in allocations: nothing for each packet, also when the overlay hands over single packets.
//! One test alone in its process, because the allocator that counts is the process's.
#![expect(
    unsafe_code,
    reason = "an allocator that counts passes on what it gets"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    thread,
};

use hoplite_mediator::{Config, Front, Listen};
use hoplite_overlay::Stream;
use hoplite_testing::Double;
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
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

/// What one packet carries.
const PIECE: usize = 1200;
const PIECES: usize = 50_000;

/// A target that sends this many packets, in bursts, and reads nothing.
#[derive(Debug)]
struct Packets {
    left: usize,
    /// Bytes of the current packet that were taken.
    taken: usize,
}

impl AsyncBufRead for Packets {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.left == 0 {
            return Poll::Ready(Ok(&[]));
        }
        // Every hundredth packet is still on its way.
        if this.taken == 0 && this.left.is_multiple_of(100) {
            this.left -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(&[7; PIECE][this.taken..]))
    }

    fn consume(self: Pin<&mut Self>, n: usize) {
        let this = self.get_mut();
        this.taken += n;
        if this.taken == PIECE {
            (this.left, this.taken) = (this.left - 1, 0);
        }
    }
}

impl AsyncRead for Packets {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        unreachable!("the copy loop takes the overlay's own buffers")
    }
}

impl AsyncWrite for Packets {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, b: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(b.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Downloads all of it over SOCKS; answers with how much that was.
#[expect(clippy::disallowed_methods, reason = "this is the program")]
fn download(socks: SocketAddr) -> usize {
    let mut tcp = TcpStream::connect(socks).expect("connects");
    tcp.write_all(b"\x05\x01\x00\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50")
        .expect("writes");
    tcp.read_exact(&mut [0; 12]).expect("is answered");
    let mut buf = vec![0; 1 << 20];
    let mut got = 0;
    loop {
        match tcp.read(&mut buf).expect("reads") {
            0 => return got,
            n => got += n,
        }
    }
}

#[test]
fn a_download_allocates_nothing_for_each_packet() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let mut config = Config::default();
        config.socks.listen = Listen::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        config.http.listen = Listen::Off;
        let front = Front::bind(config).expect("binds");
        let (socks, counters) = (front.socks_addr().expect("bound"), front.counters());
        let (done, ended) = oneshot::channel();
        let program = thread::spawn(move || {
            let got = download(socks);
            done.send(()).expect("the front serves");
            got
        });
        let overlay = Arc::new(Double::nothing().streams(|_, _, _| {
            let (left, taken) = (PIECES, 0);
            Box::pin(async move { Ok(Stream::new(Packets { left, taken })) })
        }));
        let before = COUNT.get();
        front.serve(overlay, async { drop(ended.await) }).await;
        let allocated = COUNT.get() - before;
        let got = program.join().expect("no panic");
        assert_eq!(counters.snapshot().bytes_down, got as u64);
        assert!(got > PIECES / 100 * 99 * PIECE - PIECE, "{got} bytes");
        assert!(allocated < 200, "{allocated} allocations");
    });
}
