//! What is done about a connection while nobody asks: notice its end, open the warm one again, go back to QUIC, close idle ones.
//! Spawned by [`crate::pool`]; every task ends when its pool is gone.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use hoplite_link::Link;
use hoplite_overlay::{Isolation, Terms};
use tracing::debug;

use crate::{live::Live, pool::Pool};

/// How often an isolated or a replaced connection is looked at for idleness.
const LOOK: Duration = Duration::from_secs(10);

/// Spawns the task that follows `live`.
pub(crate) fn follow(pool: &Weak<Pool>, token: &Isolation, live: Arc<Live>) {
    let task: BoxFuture<'static, ()> = watch(pool.clone(), token.clone(), live).boxed();
    tokio::spawn(task);
}

/// Follows `live` until it is lost, replaced or idle.
async fn watch(pool: Weak<Pool>, token: Isolation, live: Arc<Live>) {
    tokio::select! {
        () = live.broken() => {}
        () = live.probe() => {}
        () = idle(&pool, &token, &live) => {}
        () = back_to_quic(&pool, &token, &live) => {}
    }
    let Some(pool) = pool.upgrade() else { return };
    pool.forget(&token, &live);
    if pool.is_warm(&token) {
        reopen(Arc::downgrade(&pool)).await;
    }
}

/// Dials the connection without a token until there is one, with a pause that doubles after each failure.
pub(crate) async fn reopen(pool: Weak<Pool>) {
    for failures in 0u32.. {
        let Some(pool) = pool.upgrade() else { return };
        match pool.live(&Isolation::default()).await {
            Ok(_) => return,
            Err(error) => debug!(%error, failures, "hop not reopened yet"),
        }
        let pause = pool.config.redial_pause * (1 << failures.min(5));
        drop(pool);
        tokio::time::sleep(pause).await;
    }
}

async fn idle(pool: &Weak<Pool>, token: &Isolation, live: &Arc<Live>) {
    if *token == Isolation::default() {
        // It is never idle, and nobody needs to look, while it is the one that new flows take.
        let Some(end) = pool.upgrade().map(|pool| pool.end()) else {
            return;
        };
        tokio::select! {
            () = live.superseded() => {}
            () = end => return,
        }
    }
    loop {
        tokio::time::sleep(LOOK).await;
        match pool.upgrade() {
            Some(pool) if !pool.is_idle(token, live) => {}
            _ => return,
        }
    }
}

/// Over TCP: tries QUIC again and again. Ends when a QUIC connection has taken the place of `live`;
/// what runs over TCP stays there until it ends.
async fn back_to_quic(pool: &Weak<Pool>, token: &Isolation, live: &Arc<Live>) {
    if live.is_quic() {
        return std::future::pending().await;
    }
    let terms = Terms {
        isolation: token.clone(),
        ..Terms::default()
    };
    loop {
        let Some(pause) = pool.upgrade().map(|pool| pool.config.quic_retry) else {
            return;
        };
        tokio::time::sleep(pause).await;
        let Some(strong) = pool.upgrade() else { return };
        let Ok(link) = strong.dialer.quic(&terms).await else {
            continue;
        };
        let Ok(quic) = Live::start(Link::Quic(link)).await else {
            continue;
        };
        debug!("hop is back on QUIC");
        strong.keep(token, &quic);
        follow(pool, token, quic);
        return;
    }
}
