//! `hoplite-lab monitor serve`: where a monitor's transfers come from. It may be anywhere: behind the same NAT on another interface, on a machine in
//! a data centre, behind an onion service.
//!
//! Whoever can reach it may be hostile: what it asks for has a size, all of it together a bound for each day, connections have a number, and one
//! that is silent or slow ends.

use std::{
    cell::Cell,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    rc::Rc,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{LocalSet, spawn_local},
    time::{sleep, timeout},
};

use super::{Clock, budget::DAY, config::Serve};
use crate::experiments::workload::{run::server::transfer, transfer::Head};

/// A server with its ports open.
pub(crate) struct Server {
    listeners: Vec<TcpListener>,
    shared: Rc<Shared>,
}

struct Shared {
    serve: Serve,
    clock: Clock,
    open: Cell<usize>,
    today: Cell<Today>,
}

/// What was asked for on one day of UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Today {
    day: u64,
    bytes: u64,
}

impl Today {
    /// Takes what a head asks for, unless the day's share is used up; a new day begins with nothing. A clock that was set back gives nothing back.
    fn take(&mut self, head: &Head, serve: &Serve, unix: u64) -> bool {
        let day = unix / DAY;
        if day > self.day {
            *self = Self { day, bytes: 0 };
        }
        let sizes = [head.up, head.down].map(|size| size.unwrap_or(0));
        let asked = sizes
            .iter()
            .fold(0, |sum: u64, size| sum.saturating_add(*size));
        let by_size = ![head.up, head.down].contains(&Some(0)) && head.rounds == 0;
        let after = self.bytes.saturating_add(asked);
        let fine = by_size && asked <= serve.largest && after <= serve.bytes_per_day;
        if fine {
            self.bytes = after;
        }
        fine
    }
}

impl Server {
    /// Opens the ports. Needs a runtime.
    pub(crate) fn open(serve: Serve) -> io::Result<Self> {
        let interface = serve.interface.as_deref();
        let listeners = serve
            .listen
            .iter()
            .map(|address| listen(*address, interface));
        let listeners = listeners.collect::<io::Result<_>>()?;
        let shared = Shared {
            serve,
            clock: Clock::start(1, None),
            open: Cell::new(0),
            today: Cell::default(),
        };
        Ok(Self {
            listeners,
            shared: Rc::new(shared),
        })
    }

    /// Serves for ever.
    pub(crate) async fn run(self) {
        let here = LocalSet::new();
        for listener in self.listeners {
            here.spawn_local(accept(listener, Rc::clone(&self.shared)));
        }
        here.await;
    }
}

fn listen(address: SocketAddr, interface: Option<&str>) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    socket.bind(&address.into())?;
    socket.listen(256)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(StdListener::from(socket))
}

async fn accept(listener: TcpListener, shared: Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) if shared.open.get() < shared.serve.connections => {
                shared.open.set(shared.open.get() + 1);
                spawn_local(Rc::clone(&shared).serve(stream, peer));
            }
            Ok(_) => {}
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

impl Shared {
    async fn serve(self: Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        drop(stream.set_nodelay(true));
        let may = |head: &Head| {
            let mut today = self.today.get();
            let may = today.take(head, &self.serve, self.clock.now().unix);
            self.today.set(today);
            may
        };
        let carried = transfer(stream, peer, self.serve.stall, may);
        if let Ok(Err(error)) = timeout(self.serve.timeout, carried).await {
            tracing::debug!(kind = error.kind, "a transfer ended early");
        }
        self.open.set(self.open.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down(bytes: u64) -> Head {
        Head {
            down: Some(bytes),
            ..Head::default()
        }
    }

    #[test]
    fn a_day_gives_no_more_than_its_share_and_nothing_endless() {
        let serve = Serve {
            largest: 100,
            bytes_per_day: 250,
            ..Serve::default()
        };
        let mut today = Today::default();
        let mut take = |head: Head, unix| today.take(&head, &serve, unix);
        assert!(!take(down(101), DAY), "too large");
        assert!(!take(Head { time: 9, ..down(0) }, DAY), "for a time");
        assert!(!take(
            Head {
                up: Some(u64::MAX),
                ..down(100)
            },
            DAY
        ));
        assert!(!take(
            Head {
                up: Some(1),
                rounds: u32::MAX,
                ..down(1)
            },
            DAY
        ));
        assert!(take(down(100), DAY) && take(down(100), DAY) && !take(down(100), DAY));
        assert!(!take(down(100), 0), "a clock that was set back");
        assert!(take(down(100), 2 * DAY));
    }
}
