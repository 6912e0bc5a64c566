//! What the tests of both front ends share: an overlay that follows a script, and a front that serves it.
#![expect(
    clippy::disallowed_methods,
    reason = "tests are programs and targets on loopback"
)]

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hoplite_overlay::{Direct, Error, ErrorKind, Isolation, Reason, Terms};
use hoplite_testing::Double;
use hoplite_wire::Target;
use parking_lot::Mutex;
use tokio::{io::AsyncReadExt, net::TcpStream, sync::oneshot, task::JoinHandle};

use crate::{Config, Counters, Front, Listen, tun::SocketOwners};

/// Where a target leads.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    To(SocketAddr),
    Fail(Error),
    /// It never opens.
    Hang,
}

/// Where targets lead, as the test says, and who asked for what.
#[derive(Default)]
pub(crate) struct Scripted {
    routes: Mutex<HashMap<String, Route>>,
    asked: Mutex<Vec<(String, Isolation)>>,
    opening: Arc<AtomicUsize>,
}

/// Counts itself out when an opening is given up.
struct Attempt(Arc<AtomicUsize>);

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Scripted {
    pub(crate) fn route(self, target: &str, route: Route) -> Self {
        self.routes.lock().insert(target.into(), route);
        self
    }

    /// What was asked for, with the terms' isolation.
    pub(crate) fn asked(&self) -> Vec<(String, Isolation)> {
        self.asked.lock().clone()
    }

    /// How many openings are under way.
    pub(crate) fn opening(&self) -> usize {
        self.opening.load(Ordering::SeqCst)
    }

    /// The overlay that does so.
    fn overlay(self: &Arc<Self>) -> Double {
        let (streams, datagrams) = (Arc::clone(self), Arc::clone(self));
        Double::over(Direct::new())
            .streams(move |below, target, terms| {
                let script = Arc::clone(&streams);
                Box::pin(async move {
                    script.opening.fetch_add(1, Ordering::SeqCst);
                    let _attempt = Attempt(Arc::clone(&script.opening));
                    let target = script.follow(target, terms).await?;
                    below.open_stream(&target, terms).await
                })
            })
            .datagrams(move |below, target, terms| {
                let script = Arc::clone(&datagrams);
                Box::pin(async move {
                    let target = script.follow(target, terms).await?;
                    below.open_datagrams(&target, terms).await
                })
            })
            .names(|_, _, _| unreachable!("a front end looks no name up"))
    }

    async fn follow(&self, target: &Target, terms: &Terms) -> Result<Target, Error> {
        let name = target.to_string();
        self.asked
            .lock()
            .push((name.clone(), terms.isolation.clone()));
        let route = self.routes.lock().get(&name).cloned();
        match route {
            Some(Route::To(address)) => Ok(address.into()),
            Some(Route::Fail(error)) => Err(error),
            Some(Route::Hang) => std::future::pending().await,
            None if target.socket_addr().is_some() => Ok(target.clone()),
            None => {
                Err(Error::new(ErrorKind::TargetFailed, "a test").because(Reason::NameNotFound))
            }
        }
    }
}

/// A front that serves.
pub(crate) struct Running {
    pub(crate) socks: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) counters: Arc<Counters>,
    pub(crate) overlay: Arc<Scripted>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

pub(crate) fn config() -> Config {
    let mut config = Config::default();
    let listen = Listen::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    (config.socks.listen, config.http.listen) = (listen, listen);
    config
}

pub(crate) fn start(overlay: Scripted) -> Running {
    start_with(overlay, config())
}

pub(crate) fn start_with(overlay: Scripted, config: Config) -> Running {
    run(overlay, Front::bind(config).expect("binds"))
}

/// On a machine of which `sockets` tells whose a socket is.
pub(crate) fn start_on(
    overlay: Scripted,
    config: Config,
    sockets: Option<Box<dyn SocketOwners>>,
) -> Running {
    let mut front = Front::bind(config).expect("binds");
    front.sockets = sockets;
    run(overlay, front)
}

fn run(overlay: Scripted, front: Front) -> Running {
    let overlay = Arc::new(overlay);
    let (stop, stopped) = oneshot::channel();
    let (socks, http) = (front.socks_addr(), front.http_addr());
    let counters = front.counters();
    let carrier = Arc::new(overlay.overlay());
    let task = tokio::spawn(front.serve(carrier, async { drop(stopped.await) }));
    Running {
        socks: socks.expect("bound"),
        http: http.expect("bound"),
        counters,
        overlay,
        stop: Some(stop),
        task,
    }
}

impl Running {
    pub(crate) async fn to_socks(&self) -> TcpStream {
        TcpStream::connect(self.socks).await.expect("connects")
    }

    pub(crate) async fn to_http(&self) -> TcpStream {
        TcpStream::connect(self.http).await.expect("connects")
    }

    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        self.task.await.expect("ends in order");
    }
}

pub(crate) async fn read_exactly(tcp: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    tcp.read_exact(&mut buf).await.expect("reads");
    buf
}

pub(crate) async fn read_all(tcp: &mut TcpStream) -> Vec<u8> {
    let mut buf = Vec::new();
    tcp.read_to_end(&mut buf).await.expect("reads to the end");
    buf
}

/// Every kind of failure, with its SOCKS reply, HTTP status and Proxy-Status error.
pub(crate) fn failures() -> Vec<(Error, u8, u16, &'static str)> {
    use ErrorKind::*;
    let because = |kind, reason| Error::new(kind, "testing").because(reason);
    let plain = |kind| Error::new(kind, "testing");
    vec![
        (plain(EntryUnreachable), 3, 503, "destination_unavailable"),
        (plain(PathFailed), 1, 503, "destination_unavailable"),
        (plain(TargetFailed), 4, 502, "destination_unavailable"),
        (
            because(TargetFailed, Reason::Refused),
            5,
            502,
            "connection_refused",
        ),
        (
            because(TargetFailed, Reason::NameNotFound),
            4,
            502,
            "dns_error",
        ),
        (
            because(TargetFailed, Reason::ResolverFailed),
            4,
            502,
            "dns_error",
        ),
        (
            because(TargetFailed, Reason::HostUnreachable),
            4,
            502,
            "destination_ip_unroutable",
        ),
        (
            because(TargetFailed, Reason::NetworkUnreachable),
            3,
            502,
            "destination_ip_unroutable",
        ),
        (
            because(Forbidden, Reason::Policy),
            2,
            403,
            "destination_ip_prohibited",
        ),
        (
            because(Forbidden, Reason::Authentication),
            2,
            403,
            "proxy_configuration_error",
        ),
        (
            because(Forbidden, Reason::Identity),
            2,
            403,
            "proxy_configuration_error",
        ),
        (
            because(Forbidden, Reason::Limit),
            2,
            503,
            "connection_limit_reached",
        ),
        (plain(Unsupported), 7, 501, "proxy_internal_error"),
        (plain(TimedOut), 6, 504, "connection_timeout"),
        (plain(Bug), 1, 500, "proxy_internal_error"),
    ]
}
