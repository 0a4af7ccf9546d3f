// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** The key by which a device signs its requests from now on; its secret becomes invalid. */
public final class DeviceKey {
    public String publicKey;
    /** The new key's signature over the device and itself (`edge_client.wire.proofs.key_text`), in base64url. */
    public String proof = "";

    public DeviceKey(String publicKey) {
        this.publicKey = publicKey;
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("public_key", publicKey)
                .put("proof", proof);
    }
}
