//! Values that Kubernetes or the binary would otherwise refuse only after the migration has run.

use std::thread;

use super::super::{deploy, render, said};

/// Values as JSON, and words of the error that refuses them.
const WRONG: &[(&str, &str)] = &[
    (r#"image={"tag":"1.0+build"}"#, "image.tag is \"1.0+build\": it must be a tag"),
    (r#"image={"repository":"antiphon:1.0"}"#, "a repository without scheme and tag"),
    (r#"image={"repository":"https://registry.example/antiphon"}"#, "a repository without scheme and tag"),
    (
        r#"commonLabels={"app.kubernetes.io/name":"chat"}"#,
        "commonLabels must not have app.kubernetes.io/name",
    ),
    (r#"worker.podLabels={"app.kubernetes.io/component":"x"}"#, "worker.podLabels must not have"),
    (r#"gateway.service.labels={"helm.sh/chart":"x"}"#, "gateway.service.labels must not have"),
    (
        r#"commonLabels={"team":"two words"}"#,
        "commonLabels.team is \"two words\": it must be a value of a label",
    ),
    (r#"podLabels={"a b":"c"}"#, "a name in podLabels is \"a b\""),
    (r#"worker.nodeSelector={"gpu":true}"#, "nodeSelector"),
    (r#"fullnameOverride="Chat""#, "lower-case letters"),
    (r#"nameOverride="my_chat""#, "lower-case letters"),
    (
        r#"worker.autoscaling={"enabled":true,"minReplicas":20}"#,
        "worker.autoscaling.minReplicas is 20: more than maxReplicas, which is 8",
    ),
    (
        r#"gateway.autoscaling={"enabled":true,"minReplicas":30}"#,
        "gateway.autoscaling.minReplicas is 30: more than maxReplicas, which is 20",
    ),
    (r#"mcp.autoscaling={"enabled":true,"minReplicas":9}"#, "mcp.autoscaling.minReplicas"),
    (
        r#"worker={"autoscaling":{"enabled":true},"resources":{"requests":{"cpu":null}}}"#,
        "worker.resources.requests.cpu is required",
    ),
    (
        r#"gateway.resources.limits={"memory":"1GB"}"#,
        "gateway.resources.limits.memory is \"1GB\": it must be a quantity",
    ),
    (r#"gateway.resources.limits={"mem":"1Gi"}"#, "a name in gateway.resources.limits is \"mem\""),
    (
        r#"gateway.resources.limits={"memory":"64Mi"}"#,
        "gateway.resources.requests.memory is 256Mi: more than its limit, 64Mi",
    ),
    (
        r#"migration.resources.limits={"cpu":"10m"}"#,
        "migration.resources.requests.cpu is 50m: more than its limit, 10m",
    ),
    (r#"worker.podDisruptionBudget={"maxUnavailable":"0%"}"#, "maxUnavailable"),
    (r#"tolerations=[{"key":"a","efect":"NoSchedule"}]"#, "efect"),
    (r#"worker.tolerations=[{"key":"a","operator":"Exist"}]"#, "operator"),
    (r#"migration.affinity={"podAntiAfinity":{}}"#, "podAntiAfinity"),
    (r#"topologySpreadConstraints=[{"topologyKey":"zone"}]"#, "maxSkew"),
    (r#"podSecurityContext={"runAsUsr":1}"#, "runAsUsr"),
    (r#"securityContext={"readOnly":true}"#, "readOnly"),
    (
        r#"networkPolicy={"httpFrom":[{"ipBlock":{"cidr":"10.0.0.0"}}]}"#,
        "it must be a block of addresses, such as 10.0.0.0/8",
    ),
    (
        r#"networkPolicy={"extraEgress":[{"to":[{"ipBlock":{"cidr":"10.0.0.300/8"}}]}]}"#,
        "it must be a block of addresses, such as 10.0.0.0/8",
    ),
    (r#"networkPolicy={"extraEgress":[{"port":443}]}"#, "port"),
    (r#"networkPolicy={"dnsPorts":[]}"#, "dnsPorts"),
    (
        r#"env={"ANTIPHON_LEASE_TTL_SECOND":10}"#,
        "ANTIPHON_LEASE_TTL_SECOND, which is no variable of Antiphon",
    ),
    (
        r#"workflow={"enabled":true,"llm":{"baseUrl":"http://x","model":"m"},"env":{"ANTIPHON_MAX_STEP":1}}"#,
        "ANTIPHON_MAX_STEP,",
    ),
    (r#"extraEnv=[{"name":"ANTIPHON_LOG","value":"debug"}]"#, "extraEnv must not have ANTIPHON_LOG"),
    (r#"extraEnv=[{"name":"HOST_IP","valueFrom":{"field":{}}}]"#, "field"),
    (
        r#"otlp={"endpoint":"http://x","sampler":"traceidratio","samplerArg":5}"#,
        "otlp.samplerArg is \"5\": it must be a ratio",
    ),
    (r#"otlp={"endpoint":"http://x","samplerArg":0.5}"#, "otlp.samplerArg is a ratio for"),
    (r#"otlp={"headers":{"existingSecret":"x"}}"#, "otlp.headers needs otlp.endpoint"),
    (r#"embeddings={"existingSecret":"x"}"#, "embeddings.existingSecret needs embeddings.url"),
    (r#"nats.url="nats://user:password@nats:4222""#, "nats.url must not have a user or a password"),
    (r#"nats.url="nats://a:4222,nats://token@b:4222""#, "nats.url must not have a user or a password"),
    (r#"nats.url="wss://nats:443""#, "nats/url"),
    (r#"nats.existingSecret="also""#, "set one of them"),
    (r#"database.usersSecret="also""#, "set one of them"),
    (r#"database.sslMode="verify""#, "sslMode"),
    (
        r#"database.sslMode="disable",database.clientCertificate={"existingSecret":"c"}"#,
        "database.clientCertificate is not sent",
    ),
    (r#"database.key="a key""#, "database/key"),
    (
        r#"gateway.service={"loadBalancerClass":"x/y"}"#,
        "gateway.service.loadBalancerClass needs gateway.service.type LoadBalancer",
    ),
    (
        r#"mcp.service={"nodePort":30000}"#,
        "mcp.service.nodePort needs mcp.service.type NodePort or LoadBalancer",
    ),
    (r#"gateway.service={"externalTrafficPolicy":"Local"}"#, "gateway.service.externalTrafficPolicy needs"),
    (
        r#"gateway.service={"type":"LoadBalancer","loadBalancerSourceRanges":["10.0.0.0"]}"#,
        "an element of gateway.service.loadBalancerSourceRanges is",
    ),
    (r#"gateway.service={"ipFamilies":["ipv6"]}"#, "ipFamilies"),
    (
        r#"gateway.ingress={"enabled":true,"hosts":["https://chat.example.com"]}"#,
        "without scheme, port and path",
    ),
    (r#"gateway.ingress={"enabled":true,"hosts":["a.example","a.example"]}"#, "hosts"),
    (r#"gateway.httpRoute={"enabled":true,"parentRefs":[{"nam":"x"}]}"#, "nam"),
    (r#"serviceAccount={"name":"My Account"}"#, "serviceAccount/name"),
    (r#"priorityClassName="Very High""#, "priorityClassName"),
    (r#"bindAddress="localhost""#, "an address of IPv4 or IPv6"),
    (r#"extraVolumes=[{"name":"a","secret":{"secretName":"x"}},{"name":"a","emptyDir":{}}]"#, "twice"),
    (r#"worker={"extraVolumes":[{"name":"files","emptyDir":{}}]}"#, "choose another name"),
    (r#"worker={"extraVolumes":[{"name":"a","secrets":{"secretName":"x"}}]}"#, "secrets"),
    (
        r#"migration={"extraVolumeMounts":[{"name":"a","mountPath":"/a"}]}"#,
        "the volume a, which pods of migration do not have",
    ),
    (r#"extraContainers=[{"name":"worker","image":"x"}]"#, "twice in pods of worker"),
    (r#"initContainers=[{"name":"a","imag":"x"}]"#, "image"),
    (r#"extraObjects=[{"kind":"Secret"}]"#, "without apiVersion, kind or metadata.name"),
    (r#"openshift="yes""#, "openshift"),
    (
        r#"metrics.podMonitor={"labels":{"app.kubernetes.io/name":"x"}}"#,
        "metrics.podMonitor.labels must not have",
    ),
];

#[test]
fn values_that_the_cluster_would_refuse_are_refused_before() {
    let values = deploy().join("chart/values/minimal.yaml");
    let wrong = |(set, words): &(&str, &str)| {
        let output = render(&values, &["--set-json", set]);
        let error = said(&output);
        let is_refused = !output.status.success() && error.contains(words);
        (!is_refused).then(|| format!("{set}: {}", error.lines().take(6).collect::<Vec<_>>().join(" | ")))
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let parts = WRONG.chunks(WRONG.len().div_ceil(4));
        let parts: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().filter_map(wrong).collect::<Vec<_>>()))
            .collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), WRONG.len(), wrong.join("\n"));
}

#[test]
fn long_tags_and_versions_make_valid_labels() {
    let tag = "a".repeat(61) + "-.bcd";
    let output = render(&deploy().join("chart/values/minimal.yaml"), &["--set", &format!("image.tag={tag}")]);
    let text = said(&output);
    assert!(text.contains(&format!("image: antiphon:{tag}\n")), "{text}");
    assert!(text.contains(&format!("app.kubernetes.io/version: {}\n", "a".repeat(61))), "{text}");
}
