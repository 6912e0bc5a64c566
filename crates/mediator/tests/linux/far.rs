//! What is behind the device: the front end on a thread of its own, over an overlay that finds every target on loopback.

use std::{
    future::pending,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, mpsc::sync_channel},
    thread,
};

use hoplite_mediator::tun::{Config, Counters, Device, Transparent};
use hoplite_overlay::{
    Datagrams, Direct, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms,
};
use hoplite_wire::Target;

use crate::namespace;

/// Targets at these ports fail in the way of their name.
pub(crate) const NO_HOST: u16 = 1;
pub(crate) const NO_NETWORK: u16 = 2;

/// Every target is on loopback, at its own port.
#[derive(Debug, Default)]
struct Loopback(Direct);

impl Overlay for Loopback {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        let failed = |reason| Err(Error::new(ErrorKind::TargetFailed, "testing").because(reason));
        Box::pin(async move {
            match target.port {
                NO_HOST => return failed(Reason::HostUnreachable),
                NO_NETWORK => return failed(Reason::NetworkUnreachable),
                _ => {}
            }
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, target.port)).into();
            self.0.open_stream(&target, terms).await
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "testing")) })
    }

    fn resolve<'a>(&'a self, _: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "testing")) })
    }
}

/// Serves the device of this namespace until the process ends; answers with what it counts.
pub(crate) fn serve(config: Config) -> Arc<Counters> {
    let fd = namespace::device(config.device.mtu);
    let (tell, told) = sync_channel(1);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let device = Device::new(fd, config.device.mtu, true).unwrap();
            let overlay = Arc::new(Loopback::default());
            let front = Transparent::new(config, overlay, device);
            tell.send(front.counters()).unwrap();
            drop(front.serve(pending()).await);
        });
    });
    told.recv().unwrap()
}

/// A target, and where programs find it.
pub(crate) struct Far {
    pub(crate) listener: TcpListener,
    pub(crate) v4: SocketAddr,
    pub(crate) v6: SocketAddr,
}

impl Far {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Self {
            listener,
            v4: at(port),
            v6: format!("[2001:db8::9]:{port}").parse().unwrap(),
        }
    }

    /// Both ends of a new connection: the program's and the target's.
    pub(crate) fn pair(&self) -> (TcpStream, TcpStream) {
        let program = TcpStream::connect(self.v4).unwrap();
        (program, self.listener.accept().unwrap().0)
    }
}

/// Where programs find what is at that port.
pub(crate) fn at(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(203, 0, 113, 9), port))
}

/// The octets of a direction; different for each key.
pub(crate) fn octets(key: u64, len: usize) -> Vec<u8> {
    let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    };
    let mut all: Vec<u8> = std::iter::repeat_with(next)
        .take(len / 8 + 1)
        .flatten()
        .collect();
    all.truncate(len);
    all
}

/// Sends all and finishes.
pub(crate) fn send(tcp: &TcpStream, octets: &[u8]) -> io::Result<()> {
    let mut tcp = tcp;
    tcp.write_all(octets)?;
    tcp.shutdown(std::net::Shutdown::Write)
}

/// Receives all until the other side finishes.
pub(crate) fn receive(tcp: &TcpStream) -> io::Result<Vec<u8>> {
    let (mut tcp, mut all) = (tcp, Vec::new());
    tcp.read_to_end(&mut all)?;
    Ok(all)
}

/// Closes with a reset.
pub(crate) fn reset(tcp: TcpStream) {
    let socket = socket2::SockRef::from(&tcp);
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(tcp);
}
