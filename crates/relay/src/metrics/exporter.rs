//! Answers `GET /metrics` in plain HTTP/1.1, one request after the other on each connection.
//! The relay starts it when `[metrics] listen` is set; keep that on loopback or a management network.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore};

use super::Metrics;

/// Scrapers served at the same time; the next waits.
const SCRAPERS: usize = 16;
/// How long a scraper may keep a connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves until dropped.
pub(crate) async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    let places = Arc::new(Semaphore::new(SCRAPERS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, metrics.clone()));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(5))
                .serve_connection(TokioIo::new(stream), service);
            drop(tokio::time::timeout(PATIENCE, connection).await);
            drop(place);
        });
    }
}

#[expect(clippy::unused_async, reason = "hyper's service is asynchronous")]
async fn answer(
    request: Request<Incoming>,
    metrics: Arc<Metrics>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let known = request.uri().path() == "/metrics";
    let (status, body) = match (known, request.method()) {
        (true, &Method::GET | &Method::HEAD) => (StatusCode::OK, metrics.text()),
        (true, _) => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
        (false, _) => (StatusCode::NOT_FOUND, String::new()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    Ok(response)
}
