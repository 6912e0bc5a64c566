//! The servers that the conformance suite talks to, on loopback or in memory.
//! Used by [`super`].

use std::{
    any::Any,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use hoplite_wire::Target;
use socket2::{Domain, Type};
use tokio::net::{TcpListener, TcpSocket, UdpSocket};

use crate::{Opening, Stream, direct::TcpFlow, memory};

/// Where servers are started.
pub trait Far: fmt::Debug + Send + Sync {
    /// Listens for streams at a free port.
    fn listen(&self) -> Opening<'_, Box<dyn FarListener>>;

    /// Receives datagrams at a free port.
    fn bind(&self) -> Opening<'_, Box<dyn FarSocket>>;

    /// Where the servers are; it answers echoes once one is there.
    fn host(&self) -> IpAddr;

    /// Somewhere that never answers a connection.
    fn silent(&self) -> Opening<'_, Silent>;
}

/// Accepts streams.
pub trait FarListener: Send {
    /// Where the overlay finds it.
    fn target(&self) -> Target;

    /// The next stream.
    fn accept(&mut self) -> Opening<'_, Stream>;
}

/// Receives and answers datagrams.
pub trait FarSocket: Send + Sync {
    /// Where the overlay finds it.
    fn target(&self) -> Target;

    /// The next datagram and who sent it.
    fn recv(&self) -> Opening<'_, (Vec<u8>, SocketAddr)>;

    /// Answers.
    fn send<'a>(&'a self, payload: &'a [u8], to: SocketAddr) -> Opening<'a, ()>;
}

/// Somewhere that never answers, as long as this lives.
pub struct Silent {
    /// Where.
    pub target: Target,
    _kept: Box<dyn Any + Send>,
}

/// Servers at 127.0.0.1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loopback;

/// Servers at one host of an in-memory network.
#[derive(Clone, Debug)]
pub struct Memory {
    network: memory::Network,
    host: IpAddr,
}

impl Memory {
    /// Servers at `host`.
    pub fn new(network: memory::Network, host: IpAddr) -> Self {
        Self { network, host }
    }
}

const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Far for Loopback {
    fn host(&self) -> IpAddr {
        HERE.ip()
    }

    fn listen(&self) -> Opening<'_, Box<dyn FarListener>> {
        Box::pin(async {
            let listener = TcpListener::bind(HERE).await.expect("loopback is there");
            Ok(Box::new(listener) as Box<dyn FarListener>)
        })
    }

    fn bind(&self) -> Opening<'_, Box<dyn FarSocket>> {
        Box::pin(async {
            let socket = UdpSocket::bind(HERE).await.expect("loopback is there");
            Ok(Box::new(socket) as Box<dyn FarSocket>)
        })
    }

    #[expect(clippy::disallowed_methods, reason = "fills the server's own queue")]
    /// A listener whose queue is full: the kernel drops further attempts.
    fn silent(&self) -> Opening<'_, Silent> {
        Box::pin(async {
            let listener = socket2::Socket::new(Domain::IPV4, Type::STREAM, None);
            let listener = listener.expect("a socket");
            listener.bind(&HERE.into()).expect("binds");
            listener.listen(0).expect("listens");
            let address = listener.local_addr().expect("bound").as_socket();
            let address = address.expect("an address");
            let filler = TcpSocket::new_v4()
                .expect("a socket")
                .connect(address)
                .await;
            Ok(Silent {
                target: address.into(),
                _kept: Box::new((listener, filler)),
            })
        })
    }
}

impl FarListener for TcpListener {
    fn target(&self) -> Target {
        self.local_addr().expect("bound").into()
    }

    fn accept(&mut self) -> Opening<'_, Stream> {
        Box::pin(async {
            let (socket, _) = Self::accept(self).await.expect("accepts");
            Ok(Stream::new(TcpFlow::new(socket)))
        })
    }
}

impl FarSocket for UdpSocket {
    fn target(&self) -> Target {
        self.local_addr().expect("bound").into()
    }

    fn recv(&self) -> Opening<'_, (Vec<u8>, SocketAddr)> {
        Box::pin(async {
            let mut buf = vec![0; 65_535];
            let (len, from) = self.recv_from(&mut buf).await.expect("receives");
            buf.truncate(len);
            Ok((buf, from))
        })
    }

    fn send<'a>(&'a self, payload: &'a [u8], to: SocketAddr) -> Opening<'a, ()> {
        Box::pin(async move {
            self.send_to(payload, to).await.expect("sends");
            Ok(())
        })
    }
}

impl Far for Memory {
    fn host(&self) -> IpAddr {
        self.host
    }

    fn listen(&self) -> Opening<'_, Box<dyn FarListener>> {
        Box::pin(async { Ok(Box::new(self.network.listen(self.host)) as Box<dyn FarListener>) })
    }

    fn bind(&self) -> Opening<'_, Box<dyn FarSocket>> {
        Box::pin(async { Ok(Box::new(self.network.bind(self.host)) as Box<dyn FarSocket>) })
    }

    fn silent(&self) -> Opening<'_, Silent> {
        Box::pin(async {
            let listener = self.network.listen(self.host);
            self.network.silence(listener.address());
            Ok(Silent {
                target: listener.address().into(),
                _kept: Box::new(listener),
            })
        })
    }
}

impl FarListener for memory::Listener {
    fn target(&self) -> Target {
        self.address().into()
    }

    fn accept(&mut self) -> Opening<'_, Stream> {
        Box::pin(async { Ok(Self::accept(self).await) })
    }
}

impl FarSocket for memory::Socket {
    fn target(&self) -> Target {
        self.address().into()
    }

    fn recv(&self) -> Opening<'_, (Vec<u8>, SocketAddr)> {
        Box::pin(async {
            let (payload, from) = Self::recv(self).await;
            Ok((payload.to_vec(), from))
        })
    }

    fn send<'a>(&'a self, payload: &'a [u8], to: SocketAddr) -> Opening<'a, ()> {
        Box::pin(async move {
            Self::send(self, payload, to);
            Ok(())
        })
    }
}

impl fmt::Debug for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Silent")
    }
}
