import { Sandbox } from "@superserve/sdk"

await (await Sandbox.create({ name: "x" })).commands.run("true")
