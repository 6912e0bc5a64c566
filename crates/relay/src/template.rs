//! placeholder
pub(crate) struct Templates;
impl Templates {
    pub(crate) fn new(_: Option<&str>) -> Result<Self, crate::ConfigError> {
        Ok(Self)
    }
}
