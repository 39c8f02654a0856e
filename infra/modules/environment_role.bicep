// The role that a change of a plan in an App Service Environment requires on the environment.

param environmentName string

@description('Part of the name of the role, which must be unique in the tenant.')
param app string

param principalId string

resource target 'Microsoft.Web/hostingEnvironments@2025-03-01' existing = { name: environmentName }

resource role 'Microsoft.Authorization/roleDefinitions@2022-04-01' = {
  name: guid(resourceGroup().id, app, 'join environments')
  properties: {
    roleName: 'App Service Environment join (${app}, ${uniqueString(resourceGroup().id)})'
    description: 'Changes App Service Plans that are in an App Service Environment.'
    type: 'CustomRole'
    permissions: [
      {
        actions: ['Microsoft.Web/hostingEnvironments/join/action']
        notActions: []
        dataActions: []
        notDataActions: []
      }
    ]
    assignableScopes: [resourceGroup().id]
  }
}

resource assignment 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(target.id, principalId, role.id)
  scope: target
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: role.id
  }
}
