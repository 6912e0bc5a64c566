//! Who has the list gives it, an authority or a relay that keeps it for clients ([`Given`]): all of it, or the difference to the list that the request names.
//! And the relay's server (`[directory] cache`): `GET /hoplite/list` in plain HTTP/1.1, as authorities answer it. docs/directory.md, "Caches" and
//! "Differences". Bounded in connections, time and bytes, as an authority is.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use hoplite_directory::{DIFF_FROM, ListCache, Store};
use hoplite_relay::{Config, config::CacheLimits};
use hoplite_wire::{content_coding::Encoding, directory::list_diff, networks::host_network};
use http::{HeaderMap, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::spawn_blocking, time::sleep};
use tracing::warn;

use crate::{
    http_server::{Answer, Client, Places, Rate, Rates, converse},
    say::Failure,
};

/// Before the next is accepted, when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is given. Clones give the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cache: Mutex<Arc<ListCache>>,
    /// Held while the next is made, which takes long: of two lists none is lost.
    making: Mutex<()>,
    /// What was given is kept there, over a restart.
    kept: Option<Mutex<Store>>,
}

impl Given {
    /// What was given before, by the file at `path`. Without it, or where it cannot be used, all begins anew.
    pub(crate) fn open(path: &Path) -> Self {
        let open = || {
            let mut store = Store::open(path)?;
            let cache = ListCache::kept(store.given_lists()?);
            Ok((store, cache))
        };
        match open() {
            Ok((store, cache)) => Self(Arc::new(Inner {
                cache: Mutex::new(Arc::new(cache)),
                making: Mutex::default(),
                kept: Some(Mutex::new(store)),
            })),
            Err::<_, hoplite_directory::StoreError>(error) => {
                let file = path.display();
                warn!(%file, "lists that were given before cannot be kept: {error}");
                Self::default()
            }
        }
    }

    /// From now on this list is given, and the differences to it.
    pub(crate) async fn give(&self, list: String) {
        let given = self.clone();
        // Lines by the ten thousand are compared, and nothing else waits for this thread.
        let made = spawn_blocking(move || given.take(list));
        // It ends with the runtime.
        made.await.unwrap_or_default();
    }

    fn take(&self, list: String) {
        let _making = self.0.making.lock();
        let before = Arc::clone(&self.0.cache.lock());
        if let Some(kept) = self.0.kept.as_ref().filter(|_| !before.has(&list))
            && let Err(error) = kept.lock().keep_given_list(&list)
        {
            warn!("the list cannot be kept for the time after a restart: {error}");
        }
        let next = Arc::new(before.with(list));
        *self.0.cache.lock() = next;
    }

    /// The list that is given.
    pub(crate) fn list(&self) -> Option<String> {
        let cache = Arc::clone(&self.0.cache.lock());
        let text = cache.answer(&[])?.text().to_vec();
        String::from_utf8(text).ok()
    }

    /// What is answered to a request for the list with these fields.
    pub(crate) fn answer(&self, fields: &HeaderMap) -> Answer {
        let field = |name: &str| fields.get(name)?.to_str().ok();
        let known = field(DIFF_FROM).map_or_else(Vec::new, list_diff::hashes);
        let cache = Arc::clone(&self.0.cache.lock());
        let Some(found) = cache.answer(&known) else {
            return Answer::new(StatusCode::NOT_FOUND, "there is none yet");
        };
        // Of the other form that is compressed there are parts, and nobody who knows it does not know this one.
        let encoding = match Encoding::of(field(header::ACCEPT_ENCODING.as_str()), false) {
            Encoding::Deflate => Encoding::Deflate,
            Encoding::Gzip | Encoding::Identity => Encoding::Identity,
        };
        let [body, ..] = found.parts(encoding);
        Answer {
            encoding,
            ..Answer::new(StatusCode::OK, body)
        }
    }
}

/// What all connections have in common.
struct Server {
    given: Given,
    requests: Mutex<Rates>,
    bytes: Mutex<Rates>,
    limits: CacheLimits,
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
        let limits = config.directory.cache_limits.clone();
        Self::bind(address, given, limits).await.map(Some)
    }

    async fn bind(address: SocketAddr, given: Given, limits: CacheLimits) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let doing = format!("listening at {address} for whoever asks for the list of relays");
            Failure::new(
                doing,
                error,
                "choose another address with `directory.cache`",
            )
        })?;
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
                address: host_network(address.ip()),
                is_known: false,
            };
            let place = places.enter(client);
            let (server, limits) = (Arc::clone(&self.server), &self.server.limits);
            let times = (limits.request, limits.connection);
            let answer =
                move |request| std::future::ready(server.answer(&request, client).response());
            tokio::spawn(converse(stream, place, times, answer));
        }
    }
}

impl Server {
    fn answer(&self, request: &Request<Incoming>, client: Client) -> Answer {
        if !self.requests.lock().take(client.address, 1, false) {
            return too_many();
        }
        if request.method() != Method::GET || request.uri().path() != "/hoplite/list" {
            return Answer::new(StatusCode::NOT_FOUND, "there is no such document");
        }
        let answer = self.given.answer(request.headers());
        let mut bytes = self.bytes.lock();
        if bytes.take(client.address, answer.bytes(), false) {
            answer
        } else {
            too_many()
        }
    }
}

fn too_many() -> Answer {
    let why = "too much is asked for: ask again in a minute, or another relay";
    Answer::new(StatusCode::TOO_MANY_REQUESTS, why)
}
