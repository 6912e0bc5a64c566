//! From the target to the program. Large slices of the overlay's buffers are written as they are; small ones, such as
//! single packets, are gathered first: copying a packet costs a tenth of what a system call for it costs.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hoplite_overlay::Stream;
use tokio::io::{AsyncBufRead, AsyncWrite};

use crate::app::App;

use super::{BUFFER, Fault, pool};

/// A slice of at least so many octets is written without being gathered.
const LARGE: usize = 16 * 1024;

/// The state of the download.
#[derive(Debug, Default)]
pub(super) struct Down {
    /// Octets taken over by the program's connection.
    pub(super) moved: usize,
    /// What was gathered, given back while the target is silent.
    gathered: Vec<u8>,
    written: usize,
    /// How the stream ended, to be told once all is written.
    ended: Option<io::Result<()>>,
    finished: bool,
}

impl Down {
    /// Moves what can be moved.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut App,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        while !self.finished {
            ready!(self.write_gathered(cx, app))?;
            match self.ended.take() {
                Some(Ok(())) => ready!(self.finish(cx, app))?,
                Some(Err(error)) => return Poll::Ready(Err(Fault::Stream(error))),
                None => ready!(self.advance(cx, app, stream))?,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn write_gathered(&mut self, cx: &mut Context<'_>, app: &mut App) -> Poll<Result<(), Fault>> {
        while let Some(rest) = self.gathered.get(self.written..).filter(|r| !r.is_empty()) {
            let n = ready!(write(cx, app, rest))?;
            self.written += n;
            self.moved += n;
        }
        self.gathered.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Writes one large slice, or gathers small ones. Nothing is gathered yet.
    fn advance(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut App,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        match Pin::new(&mut *stream).poll_fill_buf(cx) {
            Poll::Ready(Ok(slice)) if slice.len() >= LARGE => {
                let n = ready!(write(cx, app, slice))?;
                Pin::new(stream).consume(n);
                self.moved += n;
            }
            Poll::Pending => {
                pool::take_back(&mut self.gathered);
                return Poll::Pending;
            }
            Poll::Ready(Ok([])) => self.ended = Some(Ok(())),
            Poll::Ready(Ok(_)) => self.gather(cx, stream),
            Poll::Ready(Err(error)) => self.ended = Some(Err(error)),
        }
        Poll::Ready(Ok(()))
    }

    fn gather(&mut self, cx: &mut Context<'_>, stream: &mut Stream) {
        pool::provide(&mut self.gathered);
        while self.gathered.len() < BUFFER {
            match Pin::new(&mut *stream).poll_fill_buf(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok([])) => return self.ended = Some(Ok(())),
                Poll::Ready(Err(error)) => return self.ended = Some(Err(error)),
                Poll::Ready(Ok(slice)) => {
                    let room = BUFFER - self.gathered.len();
                    let slice = slice.get(..room).unwrap_or(slice);
                    self.gathered.extend_from_slice(slice);
                    let n = slice.len();
                    Pin::new(&mut *stream).consume(n);
                }
            }
        }
    }

    fn finish(&mut self, cx: &mut Context<'_>, app: &mut App) -> Poll<Result<(), Fault>> {
        let Poll::Ready(done) = Pin::new(app).poll_shutdown(cx) else {
            self.ended = Some(Ok(()));
            return Poll::Pending;
        };
        self.finished = true;
        pool::take_back(&mut self.gathered);
        Poll::Ready(done.map_err(Fault::App))
    }
}

fn write(cx: &mut Context<'_>, app: &mut App, slice: &[u8]) -> Poll<Result<usize, Fault>> {
    Poll::Ready(match ready!(Pin::new(app).poll_write(cx, slice)) {
        Ok(0) => Err(Fault::App(io::ErrorKind::WriteZero.into())),
        Ok(n) => Ok(n),
        Err(error) => Err(Fault::App(error)),
    })
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "the program is here, on loopback"
)]
mod tests {
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use tokio::{
        io::{AsyncRead, ReadBuf},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// A target that always has more, in pieces of one size, and counts what was taken.
    #[derive(Debug)]
    struct Flood {
        piece: Vec<u8>,
        taken: Arc<AtomicUsize>,
    }

    impl AsyncBufRead for Flood {
        fn poll_fill_buf(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
            Poll::Ready(Ok(&self.get_mut().piece))
        }

        fn consume(self: Pin<&mut Self>, n: usize) {
            self.taken.fetch_add(n, Ordering::SeqCst);
        }
    }

    impl AsyncRead for Flood {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            unreachable!("the copy loop takes the overlay's own buffers")
        }
    }

    impl AsyncWrite for Flood {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    async fn pair() -> (App, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        let program = TcpStream::connect(address).await.expect("connects");
        let (tcp, _) = listener.accept().await.expect("accepts");
        (App::new(tcp), program)
    }

    #[tokio::test]
    async fn a_program_that_does_not_read_stops_the_target() {
        for size in [100, 1200, LARGE, 1 << 20] {
            let (mut app, _program) = pair().await;
            let taken = Arc::new(AtomicUsize::new(0));
            let (piece, counter) = (vec![0; size], Arc::clone(&taken));
            let mut stream = Stream::new(Flood {
                piece,
                taken: counter,
            });
            let mut down = Down::default();
            // The socket's buffers fill; each time that nothing moves, at most one buffer waits here.
            for _ in 0..1000 {
                let poll = poll_fn(|cx| Poll::Ready(down.poll(cx, &mut app, &mut stream))).await;
                assert!(poll.is_pending());
                let waiting = taken.load(Ordering::SeqCst) - down.moved;
                assert!(waiting <= BUFFER, "{waiting} octets wait");
                tokio::task::yield_now().await;
            }
        }
    }
}
