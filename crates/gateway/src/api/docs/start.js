// The addresses are relative, so that the page works behind a proxy that puts a path before them.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#description",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  // The online validator is on another machine.
  validatorUrl: null,
});
