//! A client's UDP flow: a connected socket, and the SOCKS5 header in front of each datagram where an association carries it.
//! `door` makes it, `udp` and `http3` use it. RFC 1928 §7.

use std::{io, net::UdpSocket as StdSocket};

use hoplite_wire::socks::{DatagramView, Endpoint};
use tokio::net::{TcpStream, UdpSocket};

/// Whether the kernel has no room for a datagram just now.
pub(crate) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// The flow. An association lives as long as its control connection.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) socket: UdpSocket,
    /// The same socket, for senders on threads of their own.
    sender: StdSocket,
    /// In front of each datagram; empty without a proxy.
    header: Vec<u8>,
    _control: Option<TcpStream>,
}

impl Flow {
    /// Takes a connected socket over that does not block.
    pub(crate) fn new(
        socket: StdSocket,
        association: Option<(TcpStream, Endpoint)>,
    ) -> io::Result<Self> {
        let mut header = Vec::new();
        let _control = association.map(|(control, target)| {
            target.emit_datagram_header(&mut header);
            control
        });
        Ok(Self {
            sender: socket.try_clone()?,
            socket: UdpSocket::from_std(socket)?,
            header,
            _control,
        })
    }

    /// Sends one datagram. From any thread; a full queue of the kernel is `WouldBlock`.
    pub(crate) fn send(&self, payload: &[u8]) -> io::Result<()> {
        let sent = match self.header.is_empty() {
            true => self.sender.send(payload),
            false => self.sender.send(&[&self.header, payload].concat()),
        };
        sent.map(drop)
    }

    /// The same for a datagram that will be sent again if it is lost: a full queue loses it.
    pub(crate) fn offer(&self, payload: &[u8]) -> io::Result<()> {
        self.send(payload).or_else(|error| match is_full(&error) {
            true => Ok(()),
            false => Err(error),
        })
    }

    /// The next datagram.
    pub(crate) async fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        loop {
            let len = self.socket.recv(buffer).await?;
            if let Some(from) = self.payload_at(&buffer[..len]) {
                return Ok(&buffer[from..len]);
            }
        }
    }

    /// Where the payload of a datagram begins; `None` for what is no datagram of the association.
    pub(crate) fn payload_at(&self, datagram: &[u8]) -> Option<usize> {
        if self.header.is_empty() {
            return Some(0);
        }
        let view = DatagramView::parse(datagram).ok()?;
        (view.fragment == 0).then_some(view.header.len())
    }
}
