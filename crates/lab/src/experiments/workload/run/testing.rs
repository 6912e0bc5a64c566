//! Loopback for the tests of workloads: our server on any ports, a SOCKS5 and an HTTP proxy, servers that misbehave.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use hoplite_wire::socks::{Acceptor, Command, DatagramView, Endpoint, Reply, ReplyCode, Step};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream, UdpSocket},
};

use super::{client, server::Server};
use crate::experiments::workload::{Bulk, Kind, Order, Plan, Ports, Transfer, Way};

/// Runs a test's future on a runtime as `__work` has it.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

/// An honest server; it lives as long as the runtime.
pub(super) fn serve() -> Ports {
    let any = Ports {
        transfer: 0,
        udp: 0,
        http: 0,
        https: 0,
    };
    let server = Server::bind(any, None).unwrap();
    let ports = server.ports().unwrap();
    tokio::spawn(server.run());
    ports
}

/// An order for 127.0.0.1, straight.
pub(super) fn order(kind: Kind, ports: Ports) -> Order {
    Order {
        plan: Plan {
            name: "test".into(),
            group: "1".into(),
            at: Duration::ZERO,
            from: "client".into(),
            to: "server".into(),
            resolver: None,
            among: Vec::new(),
            direct: false,
            may_fail: false,
            counted_as: None,
            kind,
            stall: Duration::from_secs(20),
            timeout: Duration::from_secs(60),
        },
        way: Way::Direct,
        target: "127.0.0.1".into(),
        fresh_names: false,
        nearest: Default::default(),
        ports,
        seed: 1,
        qlog: None,
        interface: None,
        surroundings: None,
    }
}

/// One transfer by size.
pub(super) fn bulk(bytes: u64) -> Bulk {
    Bulk {
        bytes,
        time: Duration::ZERO,
        connections: 1,
        count: 1,
        pause: Duration::ZERO,
    }
}

/// All transfers of an order.
pub(super) async fn work(order: &Order) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    let mut out = |transfer| {
        transfers.push(transfer);
        Ok(())
    };
    client::run(order, &mut out).await.unwrap();
    transfers
}

/// The only transfer of an order.
pub(super) async fn work_one(order: &Order) -> Transfer {
    let [transfer] = work(order).await.try_into().unwrap();
    transfer
}

/// The kind of a transfer's error, empty if there is none.
pub(super) fn fault(transfer: &Transfer) -> &str {
    transfer.error.as_ref().map_or("", |error| &error.kind)
}

/// A listener on loopback, and its address.
pub(super) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A server that does `serve` with each connection.
pub(super) async fn serve_with<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Ports
where
    F: Future<Output = ()> + Send + 'static,
{
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    Ports {
        transfer: address.port(),
        ..Ports::default()
    }
}

/// A way to a port of ours on which a bit of one byte is changed: the one at `place` of what goes `up`, or of what comes down.
pub(super) async fn bent(to: u16, up: bool, place: usize) -> u16 {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let Ok(mut far) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else {
                return;
            };
            tokio::spawn(async move {
                let ((near_in, near_out), (far_in, far_out)) = (near.split(), far.split());
                let (bend, straight) = (Some(place), None);
                let [there, back] = if up {
                    [bend, straight]
                } else {
                    [straight, bend]
                };
                tokio::join!(pass(near_in, far_out, there), pass(far_in, near_out, back));
            });
        }
    });
    address.port()
}

async fn pass(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    bend: Option<usize>,
) {
    let (mut buffer, mut passed) = (vec![0; 65_536], 0);
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if let Some(place) = bend.filter(|place| (passed..passed + len).contains(place)) {
            buffer[place - passed] ^= 0x04;
        }
        passed += len;
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
    to.shutdown().await.ok();
}

/// A SOCKS5 proxy; it tells each isolation token. With a `refusal` it answers every request with it.
pub(super) async fn socks(
    refusal: Option<ReplyCode>,
) -> (Way, tokio::sync::mpsc::Receiver<Vec<u8>>) {
    let (listener, address) = listen().await;
    let (tell, told) = tokio::sync::mpsc::channel(100);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move { proxy(stream, refusal, tell).await });
        }
    });
    (Way::Socks { address, udp: true }, told)
}

async fn proxy(
    mut stream: TcpStream,
    refusal: Option<ReplyCode>,
    tell: tokio::sync::mpsc::Sender<Vec<u8>>,
) -> Option<()> {
    let mut acceptor = Acceptor::new();
    let request = loop {
        match acceptor.step().ok()? {
            Step::Write(bytes) => stream.write_all(&bytes).await.ok()?,
            Step::Request(request) => break request,
            Step::Read => {
                let mut buffer = [0; 64];
                let len = stream.read(&mut buffer).await.ok()?;
                acceptor.handle_input(buffer.get(..len).filter(|bytes| !bytes.is_empty())?);
            }
        }
    };
    tell.send(acceptor.into_parts().0.unwrap_or_default())
        .await
        .ok()?;
    if let Some(code) = refusal {
        reply(&mut stream, code, Endpoint::UNSPECIFIED).await?;
        return Some(());
    }
    if request.command == Command::Associate {
        return associate(stream).await;
    }
    let target = request.endpoint.target().ok()?.socket_addr()?;
    let mut onward = TcpStream::connect(target).await.ok()?;
    reply(&mut stream, ReplyCode::Succeeded, Endpoint::UNSPECIFIED).await?;
    copy_bidirectional(&mut stream, &mut onward).await.ok()?;
    Some(())
}

async fn reply(stream: &mut TcpStream, code: ReplyCode, bound: Endpoint) -> Option<()> {
    let mut out = Vec::new();
    Reply { code, bound }.emit(&mut out);
    stream.write_all(&out).await.ok()
}

/// Carries datagrams until the control connection ends.
async fn associate(mut control: TcpStream) -> Option<()> {
    let near = UdpSocket::bind("127.0.0.1:0").await.ok()?;
    let far = UdpSocket::bind("127.0.0.1:0").await.ok()?;
    // "not known": the client is to use the proxy's own address.
    let bound = SocketAddr::from((Ipv4Addr::UNSPECIFIED, near.local_addr().ok()?.port()));
    reply(&mut control, ReplyCode::Succeeded, bound.into()).await?;
    let (mut there, mut back, mut end) = (vec![0; 65_536], vec![0; 65_536], [0; 1]);
    let mut client = None;
    loop {
        tokio::select! {
            _ = control.read(&mut end) => return Some(()),
            came = near.recv_from(&mut there) => {
                let (len, from) = came.ok()?;
                client = Some(from);
                let view = DatagramView::parse(&there[..len]).ok()?;
                let target = view.endpoint.endpoint().ok()?.target().ok()?.socket_addr()?;
                far.send_to(view.payload, target).await.ok()?;
            }
            came = far.recv_from(&mut back) => {
                let (len, from) = came.ok()?;
                let mut out = Vec::new();
                Endpoint::from(from).emit_datagram_header(&mut out);
                out.extend_from_slice(&back[..len]);
                near.send_to(&out, client?).await.ok()?;
            }
        }
    }
}

/// An HTTP proxy that answers `answer`, and connects to `to` behind it.
pub(super) async fn http_proxy(answer: &'static str, to: u16) -> Way {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
                let onward = (IpAddr::V4(Ipv4Addr::LOCALHOST), to);
                if let Ok(mut onward) = TcpStream::connect(onward).await {
                    drop(copy_bidirectional(&mut stream, &mut onward).await);
                }
            });
        }
    });
    Way::Http { address }
}
