//! The CONNECT-UDP paths that this relay serves: the well-known one, and one of the operator's choice.
//! The request reader matches paths with it. RFC 9298 §2 and §3; the templates themselves are in `wire`.

use hoplite_wire::{Target, Template, template::PathError};

use crate::{ConfigError, failure::Failure};

/// The templates that are served.
#[derive(Clone, Debug)]
pub(crate) struct Templates(Vec<Template>);

impl Templates {
    /// The well-known template and `configured`.
    pub(crate) fn new(configured: Option<&str>) -> Result<Self, ConfigError> {
        let mut templates = vec![Template::well_known()];
        if let Some(text) = configured {
            let wrong = |error| ConfigError::new("masque.template", format!("{error}"));
            templates.push(text.parse().map_err(wrong)?);
        }
        Ok(Self(templates))
    }

    /// The target that a path asks for.
    pub(crate) fn target(&self, path: &str) -> Result<Target, Failure> {
        let mut failure = Failure::NotFound;
        for template in &self.0 {
            match template.match_path(path) {
                Ok(target) => return Ok(target),
                Err(PathError::BadTarget) => failure = Failure::Malformed,
                Err(PathError::NoMatch) => (),
            }
        }
        Err(failure)
    }
}
