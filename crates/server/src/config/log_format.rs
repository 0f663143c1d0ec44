//! How log lines look.

use serde::{Deserialize, Serialize};

/// For people, or for programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line of text.
    #[default]
    Text,
    /// A JSON object on a line.
    Json,
}

impl LogFormat {
    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("must be 'text' or 'json'".into()),
        }
    }
}
