// The API page. In: `/openapi.json`. Out: its operations, each with a request to copy. Never: a request to any other place.

import { $, element } from "./dom.js";

let description = {};

/** Follows a reference within the document. */
function resolved(schema) {
  if (!schema?.$ref) return schema;
  return schema.$ref.slice(2).split("/").reduce((node, part) => node[part], description);
}

function typeOf(schema) {
  const { type, enum: values, $ref } = schema ?? {};
  if ($ref) return $ref.split("/").at(-1);
  if (values) return values.map((value) => JSON.stringify(value)).join(" | ");
  if (type === "array") return `list of ${typeOf(schema.items)}`;
  return [type].flat().filter(Boolean).join(" or ") || "anything";
}

function table(head, rows) {
  const line = (name, cells) => element("tr", { children: cells.map((text) => element(name, { text })) });
  const made = element("table", { children: [
    element("thead", { children: [line("th", head)] }),
    element("tbody", { children: rows.map((cells) => line("td", cells)) }),
  ] });
  return element("div", { className: "scroll", children: [made] });
}

function fields(schema, part) {
  const { properties = {}, required = [] } = resolved(schema) ?? {};
  return Object.entries(properties).map(([name, field]) => [
    part, `${name}${required.includes(name) ? " (required)" : ""}`, typeOf(field), resolved(field)?.description ?? "",
  ]);
}

/** The call as a command: with an example of each part of its path, each header that has one, and its body. */
function command(path, method, told) {
  const parameters = (told.parameters ?? []).map(resolved);
  const example = (name) => parameters.find((parameter) => parameter.in === "path" && parameter.name === name)?.example ?? name;
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => example(name));
  const body = told.requestBody?.content["application/json"]?.example;
  // curl sends GET by itself, and POST where there is a body.
  const usual = body ? "post" : "get";
  const headers = parameters.filter((parameter) => parameter.in === "header" && parameter.example !== undefined);
  return [
    "curl",
    path === "/v1/events" && "-N",
    method !== usual && `-X ${method.toUpperCase()}`,
    location.origin + filled,
    ...headers.map(({ name, example: value }) => `-H '${name}: ${value}'`),
    body && `-d '${JSON.stringify(body)}'`,
  ].filter(Boolean).join(" ");
}

function operation(path, method, told) {
  const title = element("h2", { children: [element("span", { text: method.toUpperCase(), className: "method" }), element("code", { text: path })] });
  const section = element("section", { className: "card", children: [title, element("p", { text: told.summary })] });
  if (told.description) section.append(element("p", { text: told.description, className: "hint" }));
  section.append(element("pre", { tabindex: "0", "aria-label": "Example", children: [element("code", { text: command(path, method, told) })] }));
  const parameters = (told.parameters ?? []).map(resolved).map((parameter) => [
    parameter.in, `${parameter.name}${parameter.required ? " (required)" : ""}`, typeOf(parameter.schema), parameter.description ?? "",
  ]);
  const body = Object.values(told.requestBody?.content ?? {})[0]?.schema;
  const rows = [...parameters, ...fields(body, "body")];
  if (rows.length) section.append(table(["In", "Name", "Type", "Meaning"], rows));
  const answers = Object.entries(told.responses).map(([status, answer]) => {
    const schema = Object.values(resolved(answer).content ?? {})[0]?.schema;
    return [status, resolved(answer).description, schema ? typeOf(schema) : ""];
  });
  section.append(table(["Status", "Meaning", "Body"], answers));
  return section;
}

async function main() {
  description = await (await fetch("/openapi.json")).json();
  $("about").textContent = `${description.info.description} Version ${description.info.version}.`;
  const all = Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, told]) => ({ tag: told.tags[0], made: operation(path, method, told) })));
  for (const { name, description: about } of description.tags) {
    const group = element("details", { open: "", children: [element("summary", { text: `${name}: ${about}` }), ...all.filter(({ tag }) => tag === name).map(({ made }) => made)] });
    $("operations").append(group);
  }
  $("filter").addEventListener("input", () => {
    const text = $("filter").value.toLowerCase();
    for (const { made } of all) made.hidden = !made.textContent.toLowerCase().includes(text);
  });
}

main().catch((error) => { $("about").textContent = `The description could not be read: ${error.message}`; });
