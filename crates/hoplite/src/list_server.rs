//! A relay that keeps the list of relays for clients (`[directory] cache`): `GET /hoplite/list` in plain HTTP/1.1, as authorities answer it, or the difference
//! to the list that the request names. docs/directory.md, "Caches". Bounded in connections, time and bytes, as an authority is.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hoplite_directory::{DIFF_FROM, ListCache};
use hoplite_relay::Config;
use hoplite_wire::directory::{SignedList, list_diff};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::spawn_blocking, time::sleep};

use crate::{
    config::directory::Limits,
    http_server::{Client, Places, Rate, Rates, client, converse},
    say::Failure,
};

/// Before the next is accepted, when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is given. Clones give the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given(Arc<Mutex<Arc<ListCache>>>);

impl Given {
    /// From now on this list is given, and the differences to it.
    pub(crate) async fn give(&self, list: SignedList) {
        let given = self.clone();
        // Lines by the ten thousand are compared, and nothing else waits for this thread.
        let made = spawn_blocking(move || {
            let before = Arc::clone(&given.0.lock());
            let next = Arc::new(before.with(&list));
            *given.0.lock() = next;
        });
        // It ends with the runtime.
        made.await.unwrap_or_default();
    }

    fn answer(&self, known: Option<&[u8; 32]>) -> Option<Bytes> {
        let cache = Arc::clone(&self.0.lock());
        cache.answer(known)
    }
}

/// What all connections have in common.
struct Server {
    given: Given,
    requests: Mutex<Rates>,
    bytes: Mutex<Rates>,
    limits: Limits,
}

/// What listens.
pub(crate) struct ListServer {
    listener: TcpListener,
    server: Arc<Server>,
}

impl ListServer {
    /// None if the file does not say that lists are given.
    pub(crate) async fn of(config: &Config, given: Option<Given>) -> Result<Option<Self>, Failure> {
        let Some((address, given)) = config.directory.cache.zip(given) else {
            return Ok(None);
        };
        Self::bind(address, given).await.map(Some)
    }

    async fn bind(address: SocketAddr, given: Given) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let doing = format!("listening at {address} for whoever asks for the list of relays");
            Failure::new(
                doing,
                error,
                "choose another address with `directory.cache`",
            )
        })?;
        let limits = Limits::default();
        let rates = |all, each| Mutex::new(Rates::new(Rate { all, each }));
        Ok(Self {
            listener,
            server: Arc::new(Server {
                given,
                requests: rates(limits.requests, limits.requests_per_client),
                bytes: rates(limits.bytes, limits.bytes_per_client),
                limits,
            }),
        })
    }

    /// Serves until dropped.
    pub(crate) async fn run(self) {
        let places = Places::new(
            self.server.limits.connections,
            self.server.limits.per_client,
        );
        loop {
            let Ok((stream, address)) = self.listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let client = Client {
                address: client(address.ip()),
                is_authority: false,
            };
            let place = places.enter(client);
            let (server, limits) = (Arc::clone(&self.server), &self.server.limits);
            let times = (limits.request, limits.connection);
            let answer = move |request| std::future::ready(server.answer(&request, client));
            tokio::spawn(converse(stream, place, times, answer));
        }
    }
}

impl Server {
    fn answer(&self, request: &Request<Incoming>, client: Client) -> Response<Full<Bytes>> {
        let (status, body) = self.found(request, client);
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
    }

    fn found(&self, request: &Request<Incoming>, client: Client) -> (StatusCode, Bytes) {
        if !self.requests.lock().take(client.address, 1, false) {
            return too_many();
        }
        if request.method() != Method::GET || request.uri().path() != "/hoplite/list" {
            return (StatusCode::NOT_FOUND, "there is no such document".into());
        }
        let known = request.headers().get(DIFF_FROM);
        let known = known.and_then(|known| list_diff::hash(known.to_str().ok()?));
        let Some(body) = self.given.answer(known.as_ref()) else {
            return (StatusCode::NOT_FOUND, "there is none yet".into());
        };
        let bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
        if self.bytes.lock().take(client.address, bytes, false) {
            (StatusCode::OK, body)
        } else {
            too_many()
        }
    }
}

fn too_many() -> (StatusCode, Bytes) {
    let why = "too much is asked for: ask again in a minute, or another relay";
    (StatusCode::TOO_MANY_REQUESTS, why.into())
}
