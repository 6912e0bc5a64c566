//! Heads between our own types and those of the crate `http`, checked by the same rules as over HTTP/3.
//! RFC 9113 §8.2 and §8.3, RFC 8441 §4.

use ::h2::ext::Protocol;
use bytes::Bytes;
use hoplite_wire::message::{Header, RequestHead, ResponseHead};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version, request, response,
};

use super::H2Error;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

pub(super) fn request(head: &RequestHead) -> Result<Request<()>, H2Error> {
    let unfit = |_| H2Error::Malformed("a request that HTTP/2 cannot carry");
    let mut request = Request::builder()
        .method(head.method.as_str())
        .uri(uri(head).map_err(unfit)?)
        .version(Version::HTTP_2)
        .body(())
        .map_err(unfit)?;
    if let Some(protocol) = &head.protocol {
        let protocol = Protocol::from(protocol.as_str());
        request.extensions_mut().insert(protocol);
    }
    fill(request.headers_mut(), &head.headers)?;
    Ok(request)
}

fn uri(head: &RequestHead) -> Result<Uri, http::Error> {
    let mut uri = Uri::builder().authority(head.authority.as_str());
    if let Some(scheme) = &head.scheme {
        uri = uri.scheme(scheme.as_str());
    }
    if let Some(path) = &head.path {
        uri = uri.path_and_query(path.as_str());
    }
    uri.build()
}

pub(super) fn response(head: &ResponseHead) -> Result<Response<()>, H2Error> {
    let mut response = Response::builder()
        .status(head.status)
        .version(Version::HTTP_2)
        .body(())
        .map_err(|_| H2Error::Malformed("a response that HTTP/2 cannot carry"))?;
    fill(response.headers_mut(), &head.headers)?;
    Ok(response)
}

fn fill(map: &mut HeaderMap, headers: &[Header]) -> Result<(), H2Error> {
    for (name, value) in headers {
        let unfit = H2Error::Malformed("a field that HTTP/2 cannot carry");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unfit.clone())?;
        let mut value =
            HeaderValue::from_maybe_shared(Bytes::copy_from_slice(value)).map_err(|_| unfit)?;
        // A token must not enter the compression state: its length could be guessed from sizes (RFC 7541 §7.1.3).
        value.set_sensitive(name.as_str().ends_with("authorization"));
        map.append(name, value);
    }
    Ok(())
}

pub(super) fn read_request(parts: &request::Parts) -> Result<RequestHead, &'static str> {
    let text = |text: &str| text.as_bytes().to_vec();
    let uri = &parts.uri;
    let pseudo = [
        (":method", Some(text(parts.method.as_str()))),
        (
            ":protocol",
            parts.extensions.get().map(|p: &Protocol| text(p.as_str())),
        ),
        (":scheme", uri.scheme_str().map(text)),
        (":authority", uri.authority().map(|a| text(a.as_str()))),
        (":path", uri.path_and_query().map(|p| text(p.as_str()))),
    ];
    let pseudo = pseudo
        .into_iter()
        .filter_map(|(name, value)| Some((text(name), value?)));
    RequestHead::from_fields(pseudo.chain(fields(&parts.headers)).collect())
}

pub(super) fn read_response(parts: &response::Parts) -> Result<ResponseHead, H2Error> {
    let status = parts.status.as_str().as_bytes().to_vec();
    let mut all: Fields = vec![(b":status".to_vec(), status)];
    all.extend(fields(&parts.headers));
    ResponseHead::from_fields(all).map_err(H2Error::Malformed)
}

fn fields(map: &HeaderMap) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    map.iter()
        .map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec()))
}
