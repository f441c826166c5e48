//! Unpacks the page that shows the API from the archive of a crate, and makes the pages of the
//! book. Neither the build nor a page needs the network.

mod book;

use std::error::Error;
use std::fs::File;
use std::io::{self, Cursor};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;
use zip::ZipArchive;

/// The files of the page that come from the archive; two others are ours.
const FILES: [&str; 2] = ["swagger-ui-bundle.js", "swagger-ui.css"];

#[allow(clippy::disallowed_methods, reason = "where a build script writes to is in its environment")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build");
    let out = std::env::var("OUT_DIR")?;
    let mut archive = ZipArchive::new(Cursor::new(SWAGGER_UI_VENDORED))?;
    let names: Vec<String> = archive.file_names().filter_map(|name| Some(name.ok()?.into_owned())).collect();
    for file in FILES {
        let is_it = |name: &&String| name.ends_with(&format!("/dist/{file}"));
        let name = names.iter().find(is_it).ok_or_else(|| format!("the archive has no dist/{file}"))?;
        let packed = File::create(Path::new(&out).join(format!("{file}.gz")))?;
        let mut packed = GzEncoder::new(packed, Compression::best());
        io::copy(&mut archive.by_name(name)?, &mut packed)?;
        packed.finish()?;
    }
    book::write(Path::new(&out))
}
