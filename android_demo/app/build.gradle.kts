plugins {
    alias(libs.plugins.android.application)
}

// -PuseLocalAar takes app/libs/executorch.aar, built from ExecuTorch's sources, in place of the published one.
val useLocalAar = providers.gradleProperty("useLocalAar").isPresent

android {
    namespace = "dev.spry.app"
    compileSdk = 35

    defaultConfig {
        applicationId = "dev.spry.app"
        minSdk = 26
        targetSdk = 34
        versionCode = 1
        versionName = "0.1.0"
        ndk {
            abiFilters += listOf("arm64-v8a", "x86_64")
        }
    }

    buildTypes {
        release {
            isMinifyEnabled = false // ExecuTorch's native library looks Java classes up by name
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }

    lint {
        warningsAsErrors = false
        abortOnError = true
    }
}

dependencies {
    implementation(project(":core"))
    if (useLocalAar) {
        implementation(files("libs/executorch.aar"))
        implementation(libs.fbjni) // a file does not say what it needs
        implementation(libs.soloader)
    } else {
        implementation(libs.executorch)
    }
}
