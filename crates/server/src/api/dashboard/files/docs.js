// The API page. In: `/openapi.json`. Out: its operations, for reading. Never: a request to any other place.

const $ = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

let document_ = {};

/** Follows a reference within the document. */
function resolved(schema) {
  if (!schema?.$ref) return schema;
  return schema.$ref.slice(2).split("/").reduce((node, part) => node[part], document_);
}

function typeOf(schema) {
  const { type, enum: values, $ref } = schema ?? {};
  if ($ref) return $ref.split("/").at(-1);
  if (values) return values.map((value) => JSON.stringify(value)).join(" | ");
  if (type === "array") return `list of ${typeOf(schema.items)}`;
  return [type].flat().filter(Boolean).join(" or ") || "anything";
}

function table(head, rows) {
  const made = element("table");
  const line = made.createTHead().insertRow();
  head.forEach((title) => line.append(element("th", title)));
  const body = made.createTBody();
  for (const cells of rows) {
    const next = body.insertRow();
    cells.forEach((cell) => next.append(element("td", cell)));
  }
  const scroll = element("div", undefined, "scroll");
  scroll.append(made);
  return scroll;
}

function fields(schema, part) {
  const { properties = {}, required = [] } = resolved(schema) ?? {};
  return Object.entries(properties).map(([name, field]) => [
    part, `${name}${required.includes(name) ? " (required)" : ""}`, typeOf(field), resolved(field)?.description ?? "",
  ]);
}

function operation(path, method, told) {
  const section = element("section", undefined, "card");
  const title = element("h3");
  title.append(element("span", method.toUpperCase(), "method"), element("code", path));
  section.append(title, element("p", told.summary));
  if (told.description) section.append(element("p", told.description, "hint"));
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
  document_ = await (await fetch("/openapi.json")).json();
  $("about").textContent = `${document_.info.description} Version ${document_.info.version}.`;
  const all = Object.entries(document_.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, told]) => ({ tag: told.tags[0], made: operation(path, method, told) })));
  for (const { name, description } of document_.tags) {
    const group = element("details");
    group.open = true;
    group.append(element("summary", `${name}: ${description}`), ...all.filter(({ tag }) => tag === name).map(({ made }) => made));
    $("operations").append(group);
  }
  $("filter").addEventListener("input", () => {
    const text = $("filter").value.toLowerCase();
    for (const { made } of all) made.hidden = !made.textContent.toLowerCase().includes(text);
  });
}

main().catch((error) => { $("about").textContent = `The description could not be read: ${error.message}`; });
