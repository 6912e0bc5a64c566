//! Tells the user in the log why circuits fail: programs are told too little of it to know what to do.
//! It stands between the front ends and [`Onion`]; it tells the same thing once a minute at most.

use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hoplite_onion::Onion;
use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Stream, Terms};
use hoplite_wire::Target;
use tokio::time::Instant;
use tracing::warn;

use super::query;

/// How long the same failure is not told again.
const QUIET: Duration = Duration::from_secs(60);

/// The overlay of circuits, whose failures are told.
#[derive(Debug)]
pub(super) struct Telling {
    below: Onion,
    last: Mutex<Option<(String, Instant)>>,
}

impl Telling {
    pub(super) fn new(below: Onion) -> Self {
        Self {
            below,
            last: Mutex::default(),
        }
    }

    fn tell(&self, error: &Error) {
        let kinds = [ErrorKind::EntryUnreachable, ErrorKind::PathFailed];
        let text = error.to_string();
        // A target that is late is no circuit's fault.
        let is_the_paths = kinds.contains(&error.kind()) || text.starts_with("building a circuit");
        if is_the_paths && self.is_news(&text) {
            warn!("{text}");
        }
    }

    fn is_news(&self, text: &str) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let told = last
            .as_ref()
            .is_some_and(|(told, when)| told == text && when.elapsed() < QUIET);
        if !told {
            *last = Some((text.to_owned(), Instant::now()));
        }
        !told
    }
}

impl Overlay for Telling {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async move {
            let opened = self.below.open_stream(target, terms).await;
            opened.inspect_err(|error| self.tell(error))
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        self.below.open_datagrams(target, terms)
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let found = self.below.resolve(name, terms).await;
            found.inspect_err(|error| self.tell(error))
        })
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        Box::pin(query::answer(self, message, terms))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hoplite_link::channel::{ChannelDialer, Channels, Config, Counts, How, handshake::Us};
    use hoplite_onion::{channel::Linked, path::Fixed};
    use hoplite_overlay::Direct;

    use super::*;

    fn telling() -> Telling {
        let below = Arc::new(Direct::new());
        let link = hoplite_link::Config::default();
        let counts = Arc::<Counts>::default();
        let dialer = ChannelDialer::new(below, Us::default(), &link, Config::default(), counts);
        let linked = Linked::new(Channels::new(dialer, |_| {}), How::Raced);
        let paths = Arc::new(Fixed(Vec::new()));
        let config = hoplite_onion::Config::default();
        Telling::new(Onion::new(Arc::new(linked), paths, config))
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_failure_is_told_once_a_minute() {
        let telling = telling();
        assert!(telling.is_news("hop 1"));
        assert!(!telling.is_news("hop 1"));
        assert!(telling.is_news("hop 2"));
        assert!(!telling.is_news("hop 2"));
        tokio::time::advance(QUIET).await;
        assert!(telling.is_news("hop 2"));
    }
}
