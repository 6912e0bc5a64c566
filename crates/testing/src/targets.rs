//! Servers that behave, and some that do not: on loopback, and [`at`] the far end of any overlay. They live as long as the runtime.

use std::{net::SocketAddr, time::Duration};

use hoplite_overlay::{Stream, conformance::Far};
use hoplite_wire::Target;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

/// Sends back what it gets, and finishes when the other side does.
pub async fn echo(stream: impl AsyncRead + AsyncWrite) {
    let (mut read, mut write) = tokio::io::split(stream);
    drop(tokio::io::copy(&mut read, &mut write).await);
    drop(write.shutdown().await);
}

/// Serves each stream to a target at the far end of an overlay, in a task of its own.
pub async fn at<F, T>(far: &dyn Far, serve: F) -> Target
where
    F: Fn(Stream) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let mut listener = far.listen().await.expect("listens");
    let target = listener.target();
    tokio::spawn(async move {
        while let Ok(stream) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    target
}

/// Listens at a free port.
pub async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Serves each connection in a task of its own.
pub async fn tcp<F, T>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Sends back what it gets, and finishes when its client does.
pub async fn tcp_echo() -> SocketAddr {
    tcp(echo).await
}

/// Resets as soon as the first byte has come.
pub async fn tcp_reset() -> SocketAddr {
    tcp(|mut stream| async move {
        drop(stream.read(&mut [0; 1]).await);
        stream.set_zero_linger().expect("set");
    })
    .await
}

/// Answers one HTTP request with `text`.
pub async fn tcp_page(text: &'static str) -> SocketAddr {
    tcp(move |mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|n| n > 0)
        {
        }
        let len = text.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{text}");
        drop(stream.write_all(answer.as_bytes()).await);
    })
    .await
}

/// Sends `bytes` at once, as fast as they are taken, and finishes.
pub async fn tcp_flood(bytes: usize) -> SocketAddr {
    tcp(move |mut stream| async move {
        let chunk = vec![7; 64 * 1024];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(chunk.len());
            if stream.write_all(&chunk[..part]).await.is_err() {
                return;
            }
            left -= part;
        }
    })
    .await
}

/// Nobody listens there.
pub async fn nobody() -> SocketAddr {
    listener().await.1
}

/// Sends back what it gets.
pub async fn udp_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let address = socket.local_addr().expect("bound");
    tokio::spawn(async move {
        let mut buffer = [0; 65_536];
        loop {
            if let Ok((len, from)) = socket.recv_from(&mut buffer).await {
                drop(socket.send_to(&buffer[..len], from).await);
            }
        }
    });
    address
}

/// Takes connections and reads nothing; little fits into its sockets.
pub async fn tcp_that_never_reads() -> SocketAddr {
    buffering(4096, |stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await
}

/// A TCP target that takes 16 KiB of each connection every 40 ms, 3 Mbit/s.
pub async fn tcp_that_reads_slowly() -> SocketAddr {
    buffering(64 << 10, |mut stream| async move {
        let mut part = vec![0; 16 << 10];
        while let Ok(1..) = stream.read(&mut part).await {
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    })
    .await
}

/// A TCP target for whose connections about so many bytes wait in the system.
async fn buffering<F>(bytes: u32, serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(bytes).expect("set");
    let address = "127.0.0.1:0".parse().expect("an address");
    socket.bind(address).expect("bound");
    let listener = socket.listen(1024).expect("listening");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}
