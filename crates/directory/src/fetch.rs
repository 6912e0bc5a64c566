//! One request to an authority over any overlay, or to an HSDir over a stream to it: HTTP/1.1 (RFC 9112) in the clear, as what is asked for is public and
//! signed. Bounded in time and size: what comes compressed, in what is made of it, too.

use std::time::Duration;

use bytes::Bytes;
use hoplite_crypto::Proof;
use hoplite_overlay::{ErrorKind, Isolation, Overlay, Stream, Terms};
use hoplite_wire::{
    Target,
    content_coding::{Encoding, inflate},
    directory::{LIST, SignedDescriptor, list_diff::hash_text},
    tor::{
        directory_request::{diff_from_field, to_http_date},
        hsdir_request::HsDirRequest,
        service_descriptor::DESCRIPTOR,
    },
};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{body::Incoming, client::conn::http1, ext::ReasonPhrase};
use hyper_util::rt::TokioIo;

/// What is asked of directories through relays has connections, or circuits, of its own.
const ISOLATION: &[u8] = b"directory";

/// Bytes of an answer that says what is wrong.
const COMPLAINT: usize = 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// There is no path to the authority.
    #[error(
        "the authority cannot be reached ({0}): check its address and your network, or ask another"
    )]
    Unreachable(hoplite_overlay::Error),
    /// It does not speak HTTP as expected.
    #[error("the authority's answer is no HTTP ({0}): check its address")]
    Http(#[from] hyper::Error),
    /// It answered something else.
    #[error("the authority answered {status}{}", complaint.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Status {
        /// The status code.
        status: u16,
        /// Its first words, if they can be shown.
        complaint: Option<String>,
    },
    /// The answer is larger than such an answer may be, no text, or in a form that was not asked for.
    #[error("the authority's answer is too large or no text: ask another")]
    Unfit,
    /// It took too long.
    #[error("the authority has not answered in time: ask another, or try again")]
    TimedOut,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The document.
    pub text: String,
    /// Bytes that came for it.
    pub bytes: usize,
}

/// Gets a document of at most `most` bytes, within `limit`.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(
    overlay: &dyn Overlay,
    authority: &Target,
    path: &str,
    most: usize,
    limit: Duration,
) -> Result<String, FetchError> {
    let request = request_for_document(authority, path);
    let answer = ask(overlay, authority, request, most, limit).await;
    answer.map(|answer| answer.text)
}

/// The field of a request that names lists that one has, the dearest first, by [`hash_text`] of them without their signatures, with commas between: the
/// answer may be the difference to one of them.
pub const DIFF_FROM: &str = "hoplite-diff-from";

/// Gets a list, or the difference to one with such a hash.
pub(crate) async fn fetch_list(
    overlay: &dyn Overlay,
    source: &Target,
    known: impl Iterator<Item = &[u8; 32]>,
    limit: Duration,
) -> Result<Answered, FetchError> {
    let mut request = request_for_document(source, "/hoplite/list");
    let known: Vec<_> = known.map(hash_text).collect();
    if let Some(value) = known.join(", ").parse().ok().filter(|_| !known.is_empty()) {
        request.headers_mut().insert(DIFF_FROM, value);
    }
    ask(overlay, source, request, LIST, limit).await
}

/// A consensus that a client has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known<'a> {
    /// From when it holds, in seconds since 1970.
    pub(crate) valid_after: u64,
    /// SHA3-256 of what is signed of it.
    pub(crate) hash: &'a [u8; 32],
}

/// Gets a consensus of Tor's of at most `most` bytes, or a difference to the one that is known. dir-spec "Serving and requesting diffs".
pub(crate) async fn fetch_consensus(
    overlay: &dyn Overlay,
    directory: &Target,
    (path, known): (&str, Option<Known<'_>>),
    most: usize,
    limit: Duration,
) -> Result<String, FetchError> {
    let mut request = request_for_document(directory, path);
    if let Some(known) = known {
        let fields = [
            ("x-or-diff-from-consensus", diff_from_field(known.hash)),
            ("if-modified-since", to_http_date(known.valid_after)),
        ];
        for (name, value) in fields {
            if let Ok(value) = value.parse() {
                request.headers_mut().insert(name, value);
            }
        }
    }
    let answer = ask(overlay, directory, request, most, limit).await;
    answer.map(|answer| answer.text)
}

/// The field of a request by which a descriptor's pin is proven: see [`crate::said_by_holder`].
pub const PROOF: &str = "hoplite-pin-proof";

/// Hands a signed descriptor in, within `limit`, and with it what proves its pin, if it names one.
///
/// # Errors
/// [`FetchError`]; a refusal is a [`FetchError::Status`] that says why.
pub async fn upload(
    overlay: &dyn Overlay,
    authority: &Target,
    (descriptor, proof): (&SignedDescriptor, Option<&Proof>),
    limit: Duration,
) -> Result<(), FetchError> {
    let (path, body) = ("/hoplite/descriptor", descriptor.to_string());
    let mut request = request(Method::POST, &authority.to_string(), path, body.into());
    if let Some(proof) = proof.and_then(|proof| proof.to_string().parse().ok()) {
        request.headers_mut().insert(PROOF, proof);
    }
    ask(overlay, authority, request, COMPLAINT, limit)
        .await
        .map(drop)
}

/// Hands in what a relay tells of its last days ([`crate::statistics::sign_statistics`]), within `limit`.
///
/// # Errors
/// [`FetchError`]; a refusal is a [`FetchError::Status`] that says why.
pub async fn upload_statistics(
    overlay: &dyn Overlay,
    authority: &Target,
    statistics: String,
    limit: Duration,
) -> Result<(), FetchError> {
    let host = authority.to_string();
    let request = request(
        Method::POST,
        &host,
        "/hoplite/statistics",
        statistics.into(),
    );
    ask(overlay, authority, request, COMPLAINT, limit)
        .await
        .map(drop)
}

/// Hands a relay's documents ([`crate::tor::server_descriptor::sign`]) in to an authority of Tor's, within `limit`. dir-spec "Uploading server
/// descriptors".
///
/// # Errors
/// [`FetchError`]; a refusal is a [`FetchError::Status`] that says why.
pub async fn upload_to_tor(
    overlay: &dyn Overlay,
    authority: &Target,
    documents: &str,
    limit: Duration,
) -> Result<(), FetchError> {
    let (host, body) = (authority.to_string(), documents.to_owned());
    let request = request(Method::POST, &host, "/tor/", body.into());
    ask(overlay, authority, request, COMPLAINT, limit)
        .await
        .map(drop)
}

/// Asks an HSDir over a stream to its directory for the descriptor of a blinded key. What comes is anything, no longer than a descriptor. The caller
/// bounds the time.
///
/// # Errors
/// [`FetchError`]; [`FetchError::is_not_found`]: it has none.
pub async fn fetch_descriptor(stream: Stream, key: &[u8; 32]) -> Result<String, FetchError> {
    let asked = HsDirRequest::Fetch(*key);
    let request = request(Method::GET, "", &asked.target(), Bytes::new());
    let answer = exchange(stream, request, DESCRIPTOR).await;
    answer.map(|answer| answer.text)
}

/// Gives an HSDir a descriptor over a stream to its directory. The caller bounds the time.
///
/// # Errors
/// [`FetchError`]; a refusal is a [`FetchError::Status`].
pub async fn publish_descriptor(stream: Stream, descriptor: &str) -> Result<(), FetchError> {
    let (asked, body) = (HsDirRequest::Publish, descriptor.to_owned());
    let request = request(Method::POST, "", &asked.target(), body.into());
    exchange(stream, request, COMPLAINT).await.map(drop)
}

impl FetchError {
    /// The answer is that there is no later one.
    pub(crate) fn is_not_modified(&self) -> bool {
        matches!(self, Self::Status { status: 304, .. })
    }

    /// Not even the first relay of a path to the authority was reached.
    pub fn is_of_entry(&self) -> bool {
        matches!(self, Self::Unreachable(why) if why.kind() == ErrorKind::EntryUnreachable)
    }

    /// The answer is that there is no such thing.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status: 404, .. })
    }
}

fn request(method: Method, host: &str, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    // Paths are ours, made of ASCII letters and digits.
    *request.uri_mut() = path.parse().unwrap_or_default();
    if let Ok(host) = host.parse() {
        request.headers_mut().insert(header::HOST, host);
    }
    let close = header::HeaderValue::from_static("close");
    request.headers_mut().insert(header::CONNECTION, close);
    request
}

/// One that may be answered compressed.
fn request_for_document(source: &Target, path: &str) -> Request<Full<Bytes>> {
    let mut request = request(Method::GET, &source.to_string(), path, Bytes::new());
    let deflate = header::HeaderValue::from_static(Encoding::Deflate.name());
    let fields = request.headers_mut();
    fields.insert(header::ACCEPT_ENCODING, deflate);
    request
}

async fn ask(
    overlay: &dyn Overlay,
    authority: &Target,
    request: Request<Full<Bytes>>,
    most: usize,
    limit: Duration,
) -> Result<Answered, FetchError> {
    // Beside the flows of programs: whoever keeps a list back does not see whose he would learn.
    let terms = Terms {
        isolation: Isolation::new(ISOLATION.into()),
        ..Terms::default()
    };
    let terms = terms.within(limit);
    let all = async {
        let stream = overlay.open_stream(authority, &terms).await;
        exchange(stream.map_err(FetchError::Unreachable)?, request, most).await
    };
    let answer = tokio::time::timeout(limit, Box::pin(all)).await;
    answer.unwrap_or(Err(FetchError::TimedOut))
}

async fn exchange(
    stream: Stream,
    request: Request<Full<Bytes>>,
    most: usize,
) -> Result<Answered, FetchError> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(1 << 16)
        // C tor knows `Content-Length` in these letters alone, and takes for the body what has come so far where it finds none.
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await?;
    // When the connection has ended, what came is still to be read.
    let driven = async {
        drop(connection.await);
        std::future::pending::<()>().await;
    };
    let asked = async {
        let response = sender.send_request(request).await?;
        answer(response, most).await
    };
    tokio::select! {
        answer = asked => answer,
        () = driven => Err(FetchError::TimedOut),
    }
}

async fn answer(response: Response<Incoming>, most: usize) -> Result<Answered, FetchError> {
    let status = response.status();
    let most = if status == StatusCode::OK {
        most
    } else {
        COMPLAINT
    };
    // C tor says in the status line what is wrong, and nothing behind it.
    let reason = response.extensions().get::<ReasonPhrase>().cloned();
    let answered = document(response, most).await;
    match status {
        StatusCode::OK => answered,
        status => {
            let reason =
                reason.and_then(|reason| str::from_utf8(reason.as_bytes()).ok().map(str::to_owned));
            let said = answered.ok().map(|answered| answered.text);
            let mut said = said.into_iter().chain(reason);
            Err(FetchError::Status {
                status: status.as_u16(),
                complaint: said.find(|text| is_harmless(text)),
            })
        }
    }
}

/// Whether a stranger's words can be shown in one line.
fn is_harmless(text: &str) -> bool {
    (1..=COMPLAINT).contains(&text.len()) && text.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

/// The body, of at most `most` bytes as they come, and as they are when they are not compressed any more.
async fn document(response: Response<Incoming>, most: usize) -> Result<Answered, FetchError> {
    let coding = response.headers().get(header::CONTENT_ENCODING).cloned();
    let collected = Limited::new(response.into_body(), most).collect().await;
    let came = collected.map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(error) => FetchError::Http(*error),
        Err(error) => {
            debug_assert!(error.is::<LengthLimitError>(), "there is no other");
            FetchError::Unfit
        }
    })?;
    let came = came.to_bytes();
    let bytes = came.len();
    let is = |one: Encoding| coding.as_ref().is_some_and(|coding| coding == one.name());
    let text = if is(Encoding::Deflate) {
        inflate(&came, most).map_err(|_| FetchError::Unfit)?
    } else if coding.is_none() || is(Encoding::Identity) {
        came.into()
    } else {
        return Err(FetchError::Unfit);
    };
    let text = String::from_utf8(text).map_err(|_| FetchError::Unfit)?;
    Ok(Answered { text, bytes })
}
