//! A target on loopback that sends, counts and echoes what can be checked byte for byte.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use hoplite_overlay::{Error, Overlay, Stream, Terms};
use hoplite_wire::Target;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Bytes written at once.
const PIECE: usize = 10_000;

/// The target, served as long as it lives.
pub(crate) struct Served {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

/// Bytes of a stream, by their places: a cell that is missing, doubled or swapped is noticed.
fn pattern(from: u64, count: usize) -> Vec<u8> {
    let byte = |n: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (from..).take(count).map(byte).collect()
}

impl Served {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut guests = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                guests.spawn(async move { drop(answer(stream).await) });
            }
        });
        Self {
            address,
            _tasks: tasks,
        }
    }

    /// A stream on which `what` was asked for, `count` times.
    pub(crate) async fn ask(
        &self,
        overlay: &dyn Overlay,
        what: u8,
        count: u64,
    ) -> Result<Stream, Error> {
        let target = Target::from(self.address);
        let mut stream = overlay.open_stream(&target, &Terms::default()).await?;
        let asked = [&[what][..], &count.to_be_bytes()].concat();
        stream.write_all(&asked).await.unwrap();
        Ok(stream)
    }
}

/// A port where nobody listens.
pub(crate) async fn closed() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap()
}

/// The only name that there is, and its address.
pub(crate) const NAME: (&str, Ipv4Addr) = ("amber.example", Ipv4Addr::new(198, 51, 100, 7));

/// The answer to one DNS query (RFC 1035): the address, no address of that kind, or no such name.
pub(crate) fn names(query: &[u8]) -> Vec<u8> {
    let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
    let mut name = Vec::new();
    for label in NAME.0.split('.') {
        name.push(u8::try_from(label.len()).unwrap());
        name.extend_from_slice(label.as_bytes());
    }
    let known = query[12..].starts_with(&name);
    let is_a = query[end - 4..end - 2] == [0, 1];
    let mut answer = query[..end].to_vec();
    answer[2..4].copy_from_slice(&[0x85, if known { 0x80 } else { 0x83 }]);
    answer[4..12].copy_from_slice(&[0, 1, 0, u8::from(known && is_a), 0, 0, 0, 0]);
    if known && is_a {
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend_from_slice(&NAME.1.octets());
    }
    answer
}

pub(crate) async fn download(overlay: &dyn Overlay, served: &Served, count: u64) {
    let mut stream = served.ask(overlay, b'd', count).await.unwrap();
    let got = read_all(&mut stream).await.unwrap();
    assert_eq!(got, count, "bytes");
}

pub(crate) async fn upload(overlay: &dyn Overlay, served: &Served, count: u64) {
    let mut stream = served.ask(overlay, b'u', count).await.unwrap();
    let mut at = 0;
    while at < count {
        let piece = usize::try_from(count - at).unwrap().min(PIECE);
        stream.write_all(&pattern(at, piece)).await.unwrap();
        at += piece as u64;
    }
    assert_eq!(stream.read_u64().await.unwrap(), count, "bytes arrived");
}

/// Reads to the end; every byte must be the right one.
pub(crate) async fn read_all(stream: &mut Stream) -> io::Result<u64> {
    let (mut at, mut buffer) = (0, vec![0; PIECE]);
    loop {
        let got = stream.read(&mut buffer).await?;
        if got == 0 {
            return Ok(at);
        }
        assert_eq!(buffer[..got], pattern(at, got), "after {at}");
        at += got as u64;
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let (what, count) = (stream.read_u8().await?, stream.read_u64().await?);
    match what {
        b'd' => {
            let mut at = 0;
            while at < count {
                let piece = usize::try_from(count - at).unwrap().min(PIECE);
                stream.write_all(&pattern(at, piece)).await?;
                at += piece as u64;
            }
            stream.shutdown().await
        }
        b'u' => {
            let (mut at, mut buffer) = (0, vec![0; PIECE]);
            while at < count {
                let got = stream.read(&mut buffer).await?;
                if got == 0 || buffer[..got] != pattern(at, got) {
                    break;
                }
                at += got as u64;
            }
            stream.write_u64(at).await
        }
        // Says nothing, and waits for the end.
        _ => stream.read_u8().await.map(drop),
    }
}
